// Divisions by a number that is known at planning time, for all numerators below 2^31.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>

#include <cuda_runtime.h>

#include "kernels/cuda/base/fast_divide.h"

namespace lockstep::cuda {
namespace {

constexpr std::uint32_t kLargest = (std::uint32_t{1} << 31) - 1;

void expect_exact(std::uint32_t numerator, std::uint32_t divisor) {
  const FastDivide divide(divisor);
  const std::uint32_t quotient = divide.quotient(numerator);
  EXPECT_EQ(quotient, numerator / divisor) << numerator << " / " << divisor;
  EXPECT_EQ(divide.remainder(numerator, quotient), numerator % divisor) << numerator << " / " << divisor;
}

TEST(FastDivide, IsExactNextToEachMultiple) {
  for (std::uint32_t divisor = 1; divisor <= 4096; ++divisor)
    for (const std::uint32_t factor : {std::uint32_t{0}, std::uint32_t{1}, std::uint32_t{12345}, kLargest / divisor}) {
      const std::uint64_t multiple = std::uint64_t{factor} * divisor;
      for (const std::uint64_t numerator : {multiple, multiple + 1, multiple + divisor - 1})
        if (numerator <= kLargest) expect_exact(static_cast<std::uint32_t>(numerator), divisor);
      if (multiple > 0 && multiple <= kLargest) expect_exact(static_cast<std::uint32_t>(multiple - 1), divisor);
    }
}

TEST(FastDivide, IsExactForLargeNumbers) {
  for (const std::uint32_t divisor :
       {1u, 2u, 3u, 65535u, 65536u, 65537u, kLargest / 2, kLargest / 2 + 1, kLargest - 1, kLargest})
    for (std::uint32_t below = 0; below < 3; ++below) expect_exact(kLargest - below, divisor);
  std::mt19937 random(1);
  for (int i = 0; i < 100'000; ++i) expect_exact(random() >> 1, 1 + (random() >> (1 + random() % 31)));
}

}  // namespace
}  // namespace lockstep::cuda
