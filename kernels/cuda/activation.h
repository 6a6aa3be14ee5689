// Activation functions on the device as passes over memory, for the op of that name and for the matmul.
#pragma once

#include <cstdint>

#include "kernels/cuda/base/context.h"
#include "lockstep/dtype.h"
#include "lockstep/event.h"
#include "lockstep/ops/activation_function.h"

namespace lockstep::cuda {

/// y = f(x), n elements; y may be x.
void activate(ActivationFunction function, DType dtype, const void* x, void* y, std::int64_t n,
              const CudaContext& context, Stream& stream);
/// dx = f'(x) * dy, or dx += that; dx may be dy. With relu `x` may be y.
void activation_gradient(ActivationFunction function, DType dtype, const void* x, const void* dy, void* dx,
                         bool accumulate, std::int64_t n, const CudaContext& context, Stream& stream);

}  // namespace lockstep::cuda
