// Convolution on the CPU: oneDNN between passes. Contract and formulas: lockstep/op.h, Conv2d.
#pragma once

#include <memory>

#include "kernels/cpu/context.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<Conv2d> make_conv2d(const Conv2dDescription& description, const CpuContext& context,
                                    const CpuOptions& options = {});

}  // namespace lockstep::cpu
