// Convolution on the CPU: a bare one, by one of several algorithms for each direction, between passes. Contract and
// formulas: lockstep/op.h, Conv2d. Null algorithms: a fixed one.
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/algorithms.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<Conv2d> make_conv2d(const Conv2dDescription& description, const CpuContext& context,
                                    const CpuOptions& options = {}, Algorithms* algorithms = nullptr);

}  // namespace lockstep::cpu
