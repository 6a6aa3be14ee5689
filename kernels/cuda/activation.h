// Activation functions on the device as passes over memory, for the op of that name and for the matmul.
#pragma once

#include <cstdint>

#include "kernels/cuda/base/context.h"
#include "lockstep/dtype.h"
#include "lockstep/event.h"
#include "lockstep/ops/activation_function.h"

namespace lockstep::cuda {

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
void run_activation(const ActivationPass& pass, const CudaContext& context, Stream& stream);

}  // namespace lockstep::cuda
