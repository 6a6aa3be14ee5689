// bf16 on the CPU: the upper half of an fp32 number in memory, fp32 in registers, rounded to nearest, ties to even,
// when stored. A NaN stays one.
#pragma once

#include <bit>
#include <cstdint>

#include "lockstep/dtype.h"
#include "lockstep/error.h"

namespace lockstep::cpu {

struct Bf16 {
  std::uint16_t bits = 0;
};

inline float to_float(Bf16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }
inline float to_float(float value) { return value; }
inline Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return {static_cast<std::uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

/// What a tensor's elements are in memory.
template <typename E>
E from_float(float value) {
  if constexpr (sizeof(E) == sizeof(Bf16))
    return to_bf16(value);
  else
    return value;
}

/// Calls work(E{}) with the element type E, float or Bf16.
template <typename Work>
auto with_elements(DType dtype, const Work& work) {
  return dtype == DType::bf16 ? work(Bf16{}) : work(0.0f);
}

/// `what` computes in fp32 or bf16.
inline void require_float_or_bf16(DType dtype, const char* what) {
  require(dtype == DType::fp32 || dtype == DType::bf16, ErrorCode::not_supported,
          "{} on the CPU computes in fp32 or bf16, not {}.", what, name(dtype));
}

}  // namespace lockstep::cpu
