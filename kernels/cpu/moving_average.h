// Running statistics, once a step (op.h).
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<MovingAverage> make_moving_average(const MovingAverageDescription& description,
                                                   const CpuContext& context);

}  // namespace lockstep::cpu
