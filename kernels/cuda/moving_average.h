// Running statistics on the device. Contract: lockstep/op.h, MovingAverage.
#pragma once

#include <memory>

#include "kernels/cuda/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cuda {

std::unique_ptr<MovingAverage> make_moving_average(const MovingAverageDescription& description,
                                                   const CudaContext& context);

}  // namespace lockstep::cuda
