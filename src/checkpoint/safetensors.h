// safetensors: one file with named tensors; torchvision's names. Source: huggingface/safetensors, README "Format".
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/shape.h"

namespace lockstep::checkpoint {

struct NamedTensor {
  std::string name;  // "layer1.0.conv1.weight", "bn1.running_mean", "bn1.num_batches_tracked" (int64 on export)
  Shape shape;
  std::vector<float> values;
};

/// Writes the tensors in the order of the list. The file appears when it is complete.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata);
/// F32, F64, F16, BF16 and I64 are read as fp32. Every size is checked against the file.
std::vector<NamedTensor> read_safetensors(const std::string& path);
/// The texts of the header's __metadata__.
std::map<std::string, std::string> read_safetensors_metadata(const std::string& path);

}  // namespace lockstep::checkpoint
