// fp16 (IEEE 754 binary16) in host memory, rounded to nearest, ties to even, including subnormal numbers. Beyond 65504
// the result is infinite; NaN stays NaN. The code has no branches and is not specific to a processor, so that loops
// over it are vectorised.
#pragma once

#include <bit>
#include <cstdint>

namespace lockstep {

struct Fp16 {
  std::uint16_t bits = 0;
};

inline float to_float(Fp16 value) {
  const std::uint32_t sign = std::uint32_t{value.bits & 0x8000u} << 16, rest = value.bits & 0x7fffu;
  const std::uint32_t normal = (rest << 13) + (rest >= 0x7c00 ? (255u - 31) << 23 : (127u - 15) << 23);
  const float subnormal = static_cast<float>(rest) * 0x1p-24f;
  return std::bit_cast<float>(sign | (rest < 0x0400 ? std::bit_cast<std::uint32_t>(subnormal) : normal));
}

inline Fp16 to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  // Adding 0.5 leaves a multiple of 2^-24, the least fp16 number, in the last bits.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<std::uint32_t>(0.5f);
  const std::uint32_t normal = (magnitude - ((127u - 15) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  const std::uint32_t large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  const std::uint32_t rounded = magnitude < (127u - 14) << 23   ? subnormal
                                : magnitude < (127u + 16) << 23 ? normal
                                                                : large;
  return {static_cast<std::uint16_t>(sign | rounded)};
}

}  // namespace lockstep
