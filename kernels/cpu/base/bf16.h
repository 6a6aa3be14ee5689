// bf16 on the CPU: bf16 in memory, fp32 in registers.
#pragma once

#include "lockstep/bf16.h"
#include "lockstep/dtype.h"
#include "lockstep/error.h"

namespace lockstep::cpu {

using lockstep::to_float;
inline float to_float(float value) { return value; }

/// The type of a tensor's elements in memory.
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

/// Throws not_supported for types other than fp32 and bf16; `what` names the op in the message.
inline void require_float_or_bf16(DType dtype, const char* what) {
  require(dtype == DType::fp32 || dtype == DType::bf16, ErrorCode::not_supported,
          "{} on the CPU computes in fp32 or bf16, not {}", what, name(dtype));
}

}  // namespace lockstep::cpu
