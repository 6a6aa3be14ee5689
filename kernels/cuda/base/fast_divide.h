// Division by a number that is known when planning, by a multiplication and a shift. Without it, a kernel that computes
// a pixel's row and column would spend more time on divisions than on the pixel. Granlund and Montgomery, "Division by
// Invariant Integers using Multiplication", 1994, figure 4.1, for numerators below 2^31.
#pragma once

#include <cstdint>

namespace lockstep::cuda {

class FastDivide {
 public:
  FastDivide() = default;
  explicit FastDivide(std::uint32_t divisor) : divisor_(divisor) {
    while ((std::uint64_t{1} << shift_) < divisor) ++shift_;
    const std::uint64_t above = (std::uint64_t{1} << shift_) - divisor;
    multiplier_ = static_cast<std::uint32_t>((above << 32) / divisor + 1);
  }

  __host__ __device__ std::uint32_t quotient(std::uint32_t n) const {
    const auto high = static_cast<std::uint32_t>((std::uint64_t{n} * multiplier_) >> 32);
    return (high + n) >> shift_;
  }
  __host__ __device__ std::uint32_t remainder(std::uint32_t n, std::uint32_t quotient) const {
    return n - quotient * divisor_;
  }

 private:
  std::uint32_t divisor_ = 1;
  std::uint32_t multiplier_ = 1;
  std::uint32_t shift_ = 0;
};

}  // namespace lockstep::cuda
