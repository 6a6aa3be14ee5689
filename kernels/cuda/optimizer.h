// SGD, AdamW and LARS over whole arenas on the device. Contract: lockstep/op.h, Optimizer.
#pragma once

#include <memory>

#include "kernels/cuda/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cuda {

std::unique_ptr<Optimizer> make_optimizer(const OptimizerDescription& description, const CudaContext& context);

}  // namespace lockstep::cuda
