// Convolution on the CPU: a bare one, in one of several ways for each direction, between passes. Contract and formulas:
// lockstep/op.h, Conv2d. Null algorithms: a fixed way.
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/algorithms.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<Conv2d> make_conv2d(const Conv2dDescription& description, const CpuContext& context,
                                    const CpuOptions& options = {}, Algorithms* algorithms = nullptr);

}  // namespace lockstep::cpu
