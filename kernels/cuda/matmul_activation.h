// A matmul's activation where it is a pass of its own, and what it makes of the gradient.
#pragma once

#include <cstdint>

#include "kernels/cuda/base/context.h"
#include "lockstep/dtype.h"
#include "lockstep/event.h"
#include "lockstep/ops/activation_function.h"

namespace lockstep::cuda {

/// y = f(z), n elements; y may be z.
void activate(ActivationFunction function, DType dtype, const void* z, void* y, std::int64_t n,
              const CudaContext& context, Stream& stream);
/// dz = f'(z) * dy. With relu `z` may be y.
void activation_gradient(ActivationFunction function, DType dtype, const void* z, const void* dy, void* dz,
                         std::int64_t n, const CudaContext& context, Stream& stream);

}  // namespace lockstep::cuda
