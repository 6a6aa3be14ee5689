// fp8 (Micikevicius et al., "FP8 Formats for Deep Learning", 2022, table 1) with one scale for each tensor. The numbers
// of a tensor are multiplied by the greatest power of two with which all of them stay within the format, and rounded to
// nearest, ties to even. Since the scale is a power of two, it costs no precision: what is rounded off depends on the
// format alone, and a number in fp8, divided by the scale, is exact in bf16. So a backend without products in fp8
// emulates them with numbers of bf16. The scale of a tensor with a number that is not finite is NaN, and so are then
// all of its numbers: a step that overflowed is noticed as in bf16.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "lockstep/host_device.h"

namespace lockstep {

/// The greatest number of either is 1.75 * 2^greatest_exponent. Numbers below 2^least_exponent are subnormal.
struct Fp8Format {
  int mantissa_bits = 0, least_exponent = 0, greatest_exponent = 0;
};
inline constexpr Fp8Format kE4m3{.mantissa_bits = 3, .least_exponent = -6, .greatest_exponent = 8};
inline constexpr Fp8Format kE5m2{.mantissa_bits = 2, .least_exponent = -14, .greatest_exponent = 15};

/// The scale of a tensor whose greatest magnitude is a number of bf16 with these bits. It is at most 2^63, so that the
/// reciprocal of the product of two scales does not underflow.
LOCKSTEP_HOST_DEVICE inline float fp8_scale(std::uint32_t greatest, const Fp8Format& format) {
  constexpr std::uint32_t kInfinity = 0x7f80, kMantissa = 0x7f, kThreeQuarters = 0x60;
  if (greatest >= kInfinity) return std::numeric_limits<float>::quiet_NaN();
  const int above = (greatest & kMantissa) > kThreeQuarters ? 1 : 0;
  const int exponent = format.greatest_exponent - (static_cast<int>(greatest >> 7) - 127) - above;
  return std::bit_cast<float>(static_cast<std::uint32_t>(127 + (exponent < 63 ? exponent : 63)) << 23);
}

/// A number that is within the format, rounded to it.
inline float round_to_fp8(float value, const Fp8Format& format) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  const std::uint32_t exponent = std::max(std::bit_cast<std::uint32_t>(value) & kExponent,
                                          static_cast<std::uint32_t>(127 + format.least_exponent) << 23);
  // 1.5 times a power of two whose sum with the value has its last bit where the format has.
  const std::uint32_t bits = exponent + (static_cast<std::uint32_t>(23 - format.mantissa_bits) << 23);
  const auto magic = std::bit_cast<float>(bits | 0x400000);
  return value + magic - magic;
}

}  // namespace lockstep
