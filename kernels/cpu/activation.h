// Activation functions on the CPU as passes over memory, for the op of that name and for the matmul.
#pragma once

#include <cstdint>

#include "kernels/cpu/base/context.h"
#include "lockstep/dtype.h"
#include "lockstep/ops/activation_function.h"

namespace lockstep::cpu {

/// y = f(x), n elements of fp32 or bf16; y may be x.
void activate(ActivationFunction function, DType dtype, const void* x, void* y, std::int64_t n,
              const CpuContext& context);
/// dx = f'(x) * dy, or dx += that; dx may be dy. With relu `x` may be y.
void activation_gradient(ActivationFunction function, DType dtype, const void* x, const void* dy, void* dx,
                         bool accumulate, std::int64_t n, const CpuContext& context);

}  // namespace lockstep::cpu
