// A GPU that is not here, as cuDNN describes it: JSON with the keys of cudnn_frontend::DeviceProperties::serialize.
// Plans can be made for it, so that `plan` can predict the memory of a step on it.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::cuda {

struct DeviceDescription {
  std::string name;
  int compute_capability = 0;  // 90
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
  std::string json;  // cuDNN's serialized form; empty: plans are predicted without cuDNN (conv2d_offline.h)
};

/// Throws usage if the file cannot be read or lacks a key.
DeviceDescription read_device_description(const std::string& path);

}  // namespace lockstep::cuda
