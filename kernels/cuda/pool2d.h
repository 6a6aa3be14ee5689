// Pooling on the device. Contract: lockstep/op.h, Pool2d.
#pragma once

#include <memory>

#include "kernels/cuda/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cuda {

std::unique_ptr<Pool2d> make_pool2d(const Pool2dDescription& description, const CudaContext& context);

}  // namespace lockstep::cuda
