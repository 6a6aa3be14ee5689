// Casts: every backend rounds exactly like lockstep/bf16.h and fp16.h.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "lockstep/bf16.h"
#include "lockstep/error.h"
#include "lockstep/ops/cast.h"
#include "test/reference/backend.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

template <typename To, typename From>
std::vector<To> run(Backend& backend, const CastDescription& d, const std::vector<From>& values) {
  Device device(backend);
  const From* source = device.upload(values);
  To* target = device.garbage<To>(values.size());
  const auto op = backend.make(d);
  op->apply({.source = source, .target = target, .n_elements = values.size()},
            device.op_memory(op->memory_requirements()), device.stream());
  return device.download(target, values.size());
}

constexpr CastDescription kNarrow{.from = DType::fp32, .to = DType::bf16};
constexpr CastDescription kToHalf{.from = DType::fp32, .to = DType::fp16};
constexpr CastDescription kFromHalf{.from = DType::fp16, .to = DType::fp32};
constexpr CastDescription kWide{.from = DType::bf16, .to = DType::fp32};

TEST(Cast, RoundsToNearestEven) {
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
                            1 + 0x1p-8f + 0x1p-20f,
                            65504.0f,
                            65519.99f,            // fp16: rounds to the largest number
                            65520.0f,             // fp16: rounds to infinity
                            0x1p-14f - 0x1p-25f,  // fp16: a tie between a subnormal and a normal number
                            0x1.8p-24f,           // fp16: a tie between subnormal numbers
                            0x1p-25f,             // fp16: a tie, to 0
                            -0x1.000002p-25f};
  for (const float normal : random_normal(70001, 3)) values.push_back(normal);
  for (const float normal : random_normal(1001, 4)) values.push_back(normal * 0x1p-16f);
  for (auto& [name, backend] : tested_backends()) {
    const auto bits = run<std::uint16_t>(*backend, kNarrow, values);
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(bits[i], to_bf16(values[i]).bits) << name << ", " << i;
    const auto back = run<float>(*backend, kWide, bits);
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(back[i], to_float(Bf16{bits[i]})) << name << ", " << i;
    const auto half = run<std::uint16_t>(*backend, kToHalf, values), expected = fp16_bits(values);
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(half[i], expected[i]) << name << ", " << values[i];
    EXPECT_EQ(run<float>(*backend, kFromHalf, half), from_fp16_bits(half)) << name;
  }
}

// Tails of every length, and addresses that are not aligned to 16 bytes; the memory around the result is unchanged.
TEST(Cast, AnyLengthAtAnyAlignment) {
  constexpr std::size_t kSize = 48;
  const std::vector<float> values = random_normal(kSize, 4);
  for (auto& [name, backend] : tested_backends())
    for (std::size_t begin = 0; begin < 3; ++begin)
      for (std::size_t n = 0; n <= 19; ++n) {
        Device device(*backend);
        const float* source = device.upload(values);
        std::uint16_t* target = device.upload(std::vector<std::uint16_t>(kSize, 7));
        const auto op = backend->make(kNarrow);
        op->apply({.source = source + 4 * begin, .target = target + begin, .n_elements = n},
                  device.op_memory(op->memory_requirements()), device.stream());
        const std::vector<std::uint16_t> bits = device.download(target, kSize);
        for (std::size_t i = 0; i < kSize; ++i)
          ASSERT_EQ(bits[i], i >= begin && i < begin + n ? to_bf16(values[i + 3 * begin]).bits : 7)
              << name << ", " << n << " from " << begin << ", " << i;
      }
}

TEST(Cast, KeepsNaN) {
  for (auto& [name, backend] : tested_backends()) {
    const auto bits = run<std::uint16_t>(*backend, kNarrow, std::vector<float>{std::nanf("1")});
    EXPECT_TRUE(std::isnan(run<float>(*backend, kWide, bits)[0])) << name;
    const auto half = run<std::uint16_t>(*backend, kToHalf, std::vector<float>{std::nanf("1")});
    EXPECT_TRUE(std::isnan(run<float>(*backend, kFromHalf, half)[0])) << name;
  }
}

/// To fp32 only. Every length and alignment, since they use different code.
TEST(Cast, AddsToFp32) {
  constexpr std::size_t kSize = 48;
  const std::vector<float> before = random_normal(kSize, 5), values = random_normal(kSize, 6);
  for (auto& [name, backend] : tested_backends())
    for (const bool is_fp16 : {true, false})
      for (std::size_t begin = 0; begin < 3; ++begin)
        for (std::size_t n = 0; n <= 19; ++n) {
          Device device(*backend);
          const std::vector<std::uint16_t> bits = is_fp16 ? fp16_bits(values) : bf16_bits(values);
          const std::vector<float> added = is_fp16 ? from_fp16_bits(bits) : from_bf16_bits(bits);
          const std::uint16_t* source = device.upload(bits);
          float* target = device.upload(before);
          const auto op = backend->make(is_fp16 ? kFromHalf : kWide);
          op->apply({.source = source + 8 * begin, .target = target + begin, .n_elements = n, .accumulate = true},
                    device.op_memory(op->memory_requirements()), device.stream());
          const std::vector<float> sums = device.download(target, kSize);
          for (std::size_t i = 0; i < kSize; ++i)
            ASSERT_EQ(sums[i], i >= begin && i < begin + n ? before[i] + added[i + 7 * begin] : before[i])
                << name << ", " << n << " from " << begin << ", " << i;
        }
  for (auto& [name, backend] : tested_backends()) {
    Device device(*backend);
    std::uint16_t* target = device.upload(std::vector<std::uint16_t>(4));
    EXPECT_THROW(backend->make(kNarrow)->apply(
                     {.source = device.upload(before), .target = target, .n_elements = 4, .accumulate = true}, {},
                     device.stream()),
                 Error)
        << name;
  }
}

TEST(Cast, RejectsOtherTypes) {
  for (auto& [name, backend] : tested_backends())
    EXPECT_THROW(backend->make(CastDescription{.from = DType::fp64, .to = DType::fp32}), Error) << name;
}

}  // namespace
}  // namespace lockstep::test
