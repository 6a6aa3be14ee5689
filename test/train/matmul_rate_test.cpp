// The matmul rate is measured with random numbers: a device that multiplies zeros draws less power, and is faster.
#include "base/matmul_rate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "lockstep/bf16.h"
#include "lockstep/fp16.h"
#include "test/support/recording_backend.h"

namespace lockstep::train {
namespace {

float element(const Memory& memory, DType dtype, std::size_t i) {
  std::uint16_t bits = 0;
  float value = 0;
  const auto* const at = static_cast<const std::byte*>(memory.data()) + i * size_bytes(dtype);
  std::memcpy(dtype == DType::fp32 ? static_cast<void*>(&value) : &bits, at, size_bytes(dtype));
  if (dtype == DType::bf16) return to_float(Bf16{bits});
  return dtype == DType::fp16 ? to_float(Fp16{bits}) : value;
}

TEST(MatmulRate, RandomNumbersFillTheMemory) {
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  const auto stream = cpu->make_stream();
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
    for (const std::size_t n : {std::size_t{0}, std::size_t{1000}, std::size_t{1'200'001}}) {
      const auto memory = cpu->allocate(std::max<std::size_t>(n, 1) * size_bytes(dtype), "test");
      fill_random(*cpu, *memory, dtype, *stream);
      double sum = 0, squares = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const double value = element(*memory, dtype, i);
        sum += value;
        squares += value * value;
        ASSERT_LE(std::abs(value), 1) << i;
      }
      if (n == 0) continue;
      const double count = static_cast<double>(n);
      EXPECT_LT(std::abs(sum / count), 0.1);
      EXPECT_NEAR(squares / count, 1.0 / 3, 0.05) << "uniform in (-1, 1)";
    }
}

TEST(MatmulRate, BothOperandsAreFilledBeforeTheFirstProduct) {
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  test::RecordingBackend device(*cpu);
  EXPECT_GT(measure_matmul_rate(device, Precision::fp32), 0);
  std::size_t n_copied = 0;
  for (const test::Call& call : device.recording().calls()) {
    if (call.what == "matmul.forward") break;
    if (call.what == "copy_to_device") n_copied += call.size_bytes;
  }
  EXPECT_GE(n_copied, 2 * 512 * 512 * sizeof(float));
}

}  // namespace
}  // namespace lockstep::train
