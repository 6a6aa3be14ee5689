// Batch norm's own parts on the device: statistics to scale and bias, and dz with its sums to dx. Contract:
// lockstep/op.h, BatchNorm.
#pragma once

#include <memory>

#include "kernels/cuda/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cuda {

std::unique_ptr<BatchNorm> make_batch_norm(const BatchNormDescription& description, const CudaContext& context);

}  // namespace lockstep::cuda
