// What every CUDA op knows about the device, and the settings that apply to ops.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/base/device_description.h"

namespace lockstep {
class Algorithms;
}

namespace lockstep::cuda {

struct CudaOptions {
  /// How much of a convolution's unit is fused (conv2d_plan.h): the name of a level, or empty for the fastest level of
  /// each convolution.
  std::string convolution{};
};

struct CudaContext {
  int device = 0;
  int multiprocessors = 132;  // kernels that loop over memory launch a few blocks for each
  int compute_capability = 90;
  std::string device_name{};
  /// Null: ops are planned for `device`. Otherwise they are planned for a device that is not here, and cannot run.
  std::shared_ptr<const DeviceDescription> described{};
  CudaOptions options{};
  Algorithms* algorithms = nullptr;  // for ops that have several; null: a fixed one is used
};

}  // namespace lockstep::cuda
