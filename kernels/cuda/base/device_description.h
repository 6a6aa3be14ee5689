// A GPU that is not here, as cuDNN describes it: JSON with the keys of cudnn_frontend::DeviceProperties::serialize.
// Plans can be made for it, so that `plan` knows what a step will hold and move there.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::cuda {

struct DeviceDescription {
  std::string name;
  int compute_capability = 0;  // 90
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
  std::string json;  // as cuDNN reads it; empty: it is not asked, and plans are guessed offline (conv2d_offline.h)
};

/// Throws usage where the file cannot be read or lacks a key.
DeviceDescription read_device_description(const std::string& path);

}  // namespace lockstep::cuda
