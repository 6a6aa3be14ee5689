// What every CUDA op knows of the device, and how ops are to work.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/base/device_description.h"

namespace lockstep {
class Algorithms;
}

namespace lockstep::cuda {

struct CudaOptions {
  /// How much of a convolution's unit is fused (conv2d_plan.h): a level's name; empty: each convolution's fastest.
  std::string convolution{};
};

struct CudaContext {
  int device = 0;
  int multiprocessors = 132;  // kernels that loop over memory take a few blocks for each
  int compute_capability = 90;
  std::string device_name{};
  /// Ops are planned for the device described, on a machine without it, and cannot run; null: for `device`.
  std::shared_ptr<const DeviceDescription> described{};
  CudaOptions options{};
  Algorithms* algorithms = nullptr;  // of ops that have several; null: a fixed one
};

}  // namespace lockstep::cuda
