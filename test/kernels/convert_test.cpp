// Numbers in another type: every backend rounds as lockstep/bf16.h does, to the bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "lockstep/bf16.h"
#include "lockstep/error.h"
#include "test/reference/backend.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

template <typename To, typename From>
std::vector<To> run(Backend& backend, const ConvertDescription& d, const std::vector<From>& values) {
  Device device(backend);
  const From* source = device.upload(values);
  To* target = device.garbage<To>(values.size());
  const auto op = backend.convert(d);
  op->apply({.source = source, .target = target, .n_elements = values.size()}, device.op_memory(op->needs()),
            device.stream());
  return device.download(target, values.size());
}

constexpr ConvertDescription kNarrow{.from = DType::fp32, .to = DType::bf16};
constexpr ConvertDescription kWide{.from = DType::bf16, .to = DType::fp32};

TEST(Convert, RoundsToNearestEven) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> values{0.0f,
                            -0.0f,
                            1.0f,
                            kInfinity,
                            -kInfinity,
                            std::numeric_limits<float>::max(),
                            1e-45f,
                            1 + 0x1p-8f,            // a tie: to the even one, 1
                            1 + 0x1p-7f + 0x1p-8f,  // a tie: to the even one above
                            1 + 0x1p-8f + 0x1p-20f};
  for (const float normal : random_normal(70001, 3)) values.push_back(normal);
  for (auto& [name, backend] : tested_backends()) {
    const auto bits = run<std::uint16_t>(*backend, kNarrow, values);
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(bits[i], to_bf16(values[i]).bits) << name << ", " << i;
    const auto back = run<float>(*backend, kWide, bits);
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(back[i], to_float(Bf16{bits[i]})) << name << ", " << i;
  }
}

TEST(Convert, KeepsNaN) {
  for (auto& [name, backend] : tested_backends()) {
    const auto bits = run<std::uint16_t>(*backend, kNarrow, std::vector<float>{std::nanf("1")});
    EXPECT_TRUE(std::isnan(run<float>(*backend, kWide, bits)[0])) << name;
  }
}

TEST(Convert, RefusesOtherTypes) {
  for (auto& [name, backend] : tested_backends())
    EXPECT_THROW(backend->convert({.from = DType::fp64, .to = DType::fp32}), Error) << name;
}

}  // namespace
}  // namespace lockstep::test
