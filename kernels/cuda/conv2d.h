// Convolution on the device: a bare one (cuDNN), fused with what cuDNN has plans for, between passes for the rest.
// Contract: lockstep/op.h, Conv2d.
#pragma once

#include <memory>

#include "kernels/cuda/context.h"
#include "lockstep/algorithms.h"
#include "lockstep/op.h"

namespace lockstep::cuda {

std::unique_ptr<Conv2d> make_conv2d(const Conv2dDescription& description, const CudaContext& context,
                                    Algorithms* algorithms = nullptr);

}  // namespace lockstep::cuda
