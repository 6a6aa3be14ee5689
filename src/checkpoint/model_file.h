// A trained model: a checkpoint, a .safetensors file, or a directory of Hugging Face. It holds the weights, and what
// the file records of the model. This is sufficient to build the model for inference, without a configuration or a data
// set. Adapters, in a checkpoint or a directory of PEFT, are such a file too, but need their base (train/adapters.h).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"

namespace lockstep::checkpoint {

struct ModelFile {
  std::string path;
  /// Of a checkpoint, its state. Of a .safetensors file that Lockstep wrote, the members below; of another one, and of
  /// a directory, empty.
  StateJson state;
  /// Parameters and running statistics, under the names of torchvision or transformers.
  std::vector<NamedTensor> tensors;
  /// The text of config.json; empty if there is none.
  std::string config = {};
  /// The type in which all tensors are stored; fp32 if they differ.
  DType dtype = DType::fp32;
};

/// Whether a path names a .safetensors file. Any other file is read as a checkpoint.
bool is_safetensors(const std::string& path);
/// Whether it is a directory with a model or with adapters. A run directory is none.
bool is_model_directory(const std::string& path);
/// Of a checkpoint: the weights themselves, or the moving averages of what was trained (ema.decay).
enum class WeightsOf : std::uint8_t { model, averages };
/// Reads any kind. Throws checkpoint_mismatch if averages are asked for and the file has none, what Reader,
/// read_safetensors() and read_huggingface() throw, and checkpoint_damaged if a member of the state has another type
/// than it must have.
ModelFile read_model_file(const std::string& path, WeightsOf weights = WeightsOf::model);

/// The metadata of an exported .safetensors file: "format" is "pt", and "lockstep" contains, as JSON, the members
/// model, precision, step, inference and base of the state.
std::map<std::string, std::string> export_metadata(const StateJson& state);
/// The state in such metadata of the file `path`; empty if there is none. Throws checkpoint_damaged.
StateJson state_of_metadata(const std::map<std::string, std::string>& metadata, const std::string& path);

}  // namespace lockstep::checkpoint
