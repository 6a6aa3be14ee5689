// A trained model: a checkpoint, a .safetensors file, or a Hugging Face directory. It holds the weights, and what the
// file records about the model. This is sufficient to build the model for inference, without a configuration or a data
// set. Adapters, in a checkpoint or a PEFT directory, are read as a ModelFile too, but need their base model
// (inference/adapters.h).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"

namespace lockstep::checkpoint {

struct ModelFile {
  std::string path;
  /// For a checkpoint, its state. For a .safetensors file that Lockstep wrote, the members that export_metadata()
  /// stores. Empty for any other .safetensors file and for a directory.
  StateJson state = {};
  /// Parameters and running statistics, under the names of torchvision or transformers. The values are read when they
  /// are needed, and only then is damage found that does not show in the sizes.
  std::vector<NamedTensor> tensors = {};
  /// What belongs to other parts of a composite model, under its own names (checkpoint/composite.h).
  std::vector<NamedTensor> carried = {};
  /// The text of config.json; empty if there is none.
  std::string config = {};
  /// The type in which all tensors are stored; fp32 if they differ.
  DType dtype = DType::fp32;
};

/// Whether a path names a .safetensors file. Any other file is read as a checkpoint.
bool is_safetensors(const std::string& path);
/// Whether it is a directory with a model or with adapters. A run directory does not count as one.
bool is_model_directory(const std::string& path);
/// For a checkpoint: its weights, or the moving averages of those that were trained (ema.decay).
enum class WeightsOf : std::uint8_t { model, averages };
/// Reads any kind of model file. Throws checkpoint_mismatch if averages are requested and the file has none, and
/// checkpoint_damaged if a member of the state has the wrong type. Also throws what Reader, read_safetensors() and
/// read_huggingface() throw.
ModelFile read_model_file(const std::string& path, WeightsOf weights = WeightsOf::model);

/// The text of the config.json that a state records; empty if there is none.
std::string recorded_config(const StateJson& state);

/// The metadata of an exported .safetensors file: "format" is "pt", and "lockstep" contains, as JSON, the members
/// model, precision, step, inference and base of the state.
std::map<std::string, std::string> export_metadata(const StateJson& state);
/// The state in such metadata of the file `path`; empty if there is none. Throws checkpoint_damaged.
StateJson state_of_metadata(const std::map<std::string, std::string>& metadata, const std::string& path);

/// The files of karpathy's llama2.c in its first format, without a magic number (llama2c.cpp describes it). Returns
/// tensors with transformers' names, and a config.json of LlamaForCausalLM. Values that are not in the file are those
/// of run.c: a norm epsilon of 1e-5 and a rope_theta of 10000. Throws model_file_damaged if the sizes in the file are
/// not possible or do not add up to its length, and model_feature for a later format of llama2.c.
ModelFile read_llama2c(const std::string& path);

// ---- Values that no usable model has --------------------------------------------------------------------------------
//
// A training that diverged may leave infinities and NaN behind, and a damaged or foreign file may have a negative
// variance, whose square root is NaN. The results of such a model are meaningless.

bool is_finite(std::span<const float> values);
/// Whether require_usable() accepts values of this tensor.
bool is_usable(const std::string& tensor, std::span<const float> values);

/// Throws checkpoint_damaged, with the name of the tensor, if a value is infinite or NaN, or if a value of a tensor
/// `*.running_var` is negative.
void require_usable(const std::string& file, const std::string& tensor, std::span<const float> values);
/// From now on, reading values of these tensors throws the same.
void check_while_read(const std::string& file, std::vector<NamedTensor>& tensors);

}  // namespace lockstep::checkpoint
