// What every CUDA op knows about the device, and the settings that apply to ops.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "lockstep/op.h"

namespace lockstep {
class Algorithms;
}

namespace lockstep::cuda {

/// A GPU that is not here, as cuDNN describes it: JSON with the keys of cudnn_frontend::DeviceProperties::serialize.
/// Plans can be made for it, so that `plan` can predict the memory of a step on it.
struct DeviceDescription {
  std::string name;
  int compute_capability = 0;  // 90
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
  double bytes_per_second = 0, flops_per_second = 0;  // DeviceInfo
  std::string json;  // cuDNN's serialized form; empty: plans are predicted without cuDNN (conv2d_bare.h)
};

struct CudaOptions {
  /// How much of a convolution's unit is fused (conv2d_plan.h): the name of a level, or empty for the fastest level of
  /// each convolution.
  std::string convolution{};
};

struct CudaContext {
  int device = 0;
  int multiprocessors = 132;
  int compute_capability = 90;
  std::size_t shared_bytes = 48 << 10;  // of a block at most
  std::size_t memory_bytes = std::size_t{80} << 30;
  std::string device_name{};
  /// Null: ops are planned for `device`. Otherwise they are planned for a device that is not here, and cannot run.
  std::shared_ptr<const DeviceDescription> described{};
  CudaOptions options{};
  Algorithms* algorithms = nullptr;  // for ops that have several; null: a fixed one is used

  /// The device is known only by its properties, so that cuDNN cannot be asked.
  bool is_offline() const { return described && described->json.empty(); }
  /// For kernels that loop over memory: so many thread blocks for each multiprocessor.
  unsigned blocks(unsigned per_multiprocessor) const {
    return static_cast<unsigned>(multiprocessors) * per_multiprocessor;
  }
};

template <typename Description>
using CudaOp = PlannedOp<Description, CudaContext>;

}  // namespace lockstep::cuda
