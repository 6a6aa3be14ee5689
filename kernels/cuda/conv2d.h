// Convolution on the device: cuDNN's graphs (conv2d_bare.h), fused as far as they have plans, between passes for the
// rest. Contract and formulas: lockstep/op.h, Conv2d.
//
// How much of a unit is fused is its level; each has what those before it have:
//   passes      a bare convolution in three directions; normalisation, statistics and gradients of both in passes
//   statistics  y's statistics come out of the forward convolution
//   chain       z is made inside of the forward convolution and of the weight gradient, and is stored only where others
//               read it; dz and its sums come out of the data gradient
// The level is the fastest by `algorithms`; null: the last that has plans.
#pragma once

#include <memory>

#include "kernels/cuda/base/context.h"
#include "lockstep/algorithms.h"
#include "lockstep/op.h"

namespace lockstep::cuda {

std::unique_ptr<Conv2d> make_conv2d(const Conv2dDescription& description, const CudaContext& context,
                                    const CudaOptions& options = {}, Algorithms* algorithms = nullptr);

}  // namespace lockstep::cuda
