// Adapters in the layout of PEFT: a directory with adapter_config.json, which says how they are applied, and
// adapter_model.safetensors with A (rank, in) and B (out, rank) of each layer that has one,
// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight". Source: huggingface/peft, utils/save_and_load.py
// and tuners/lora/config.py.
//
// In checkpoints and in ModelFile, the tensors have these names without the prefix "base_model.model.", and the keys of
// model.lora are among those of the model ("lora.rank").
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/model_file.h"
#include "lockstep/config.h"

namespace lockstep::checkpoint {

inline constexpr const char* kPeftConfig = "adapter_config.json";

/// Whether it is a directory with an adapter_config.json.
bool is_peft(const std::string& path);

/// The state has the keys of model.lora, "base_path" (the base that the adapter names; may be empty), and what Lockstep
/// has recorded in the file. Throws model_feature, with the name of the key, for an adapter that needs a different
/// computation. Also throws what SafetensorsFile throws.
ModelFile read_peft(const std::string& directory);

/// `base`: a path, whose name on the Hub is written if it leads into its cache; or empty. `state`: of the checkpoint,
/// which is recorded as in write_safetensors(). `files`: names and contents of further files, such as those of the
/// tokenizer. Throws what write_model_directory() throws.
void write_peft(const std::string& directory, std::vector<NamedTensor> tensors, const Config::Model::Lora& lora,
                const std::string& base, const StateJson& state, const std::map<std::string, std::string>& files);

}  // namespace lockstep::checkpoint
