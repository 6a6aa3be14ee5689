// Global norm of the gradients, and whether the step is applied, on the device. Contract: lockstep/op.h, ClipNorm.
#pragma once

#include <memory>

#include "kernels/cuda/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cuda {

std::unique_ptr<ClipNorm> make_clip_norm(const ClipNormDescription& description, const CudaContext& context);

}  // namespace lockstep::cuda
