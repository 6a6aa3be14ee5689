// Activation functions on the CPU as passes over memory, for the op of that name and for the matmul.
#pragma once

#include <cstdint>

#include "kernels/cpu/base/context.h"
#include "lockstep/dtype.h"
#include "lockstep/ops/activation_function.h"

namespace lockstep::cpu {

/// out = f(x), or with dy out = f'(x) * dy, or out += that. `out` may be x in the former case, and dy in the latter.
struct ActivationPass {
  ActivationFunction function = ActivationFunction::none;
  DType dtype = DType::fp32;
  std::int64_t n = 0;
  const void* x = nullptr;   // with relu and dy, this may be the result f(x) too
  const void* dy = nullptr;  // null: out = f(x)
  void* out = nullptr;
  bool accumulate = false;
};
void run_activation(const ActivationPass& pass, const CpuContext& context);

}  // namespace lockstep::cpu
