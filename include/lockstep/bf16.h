// bf16 in host memory: the upper half of an fp32 number, rounded to nearest, ties to even. NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace lockstep {

struct Bf16 {
  std::uint16_t bits = 0;
};

inline float to_float(Bf16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }
inline Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return {static_cast<std::uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline Bf16 operator+(Bf16 a, Bf16 b) { return to_bf16(to_float(a) + to_float(b)); }

}  // namespace lockstep
