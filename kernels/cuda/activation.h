// Activation functions on the device as passes over memory, for the op of that name and for the matmul.
#pragma once

#include "kernels/cuda/base/context.h"
#include "lockstep/event.h"
#include "lockstep/ops/activation_function.h"

namespace lockstep::cuda {

void run_activation(const ActivationPass& pass, const CudaContext& context, Stream& stream);

}  // namespace lockstep::cuda
