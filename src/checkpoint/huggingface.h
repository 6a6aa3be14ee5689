// Hugging Face directories: config.json, which describes the model, and its tensors in model.safetensors or, in several
// files, model-00001-of-00002.safetensors and so on, with model.safetensors.index.json. Beside them are small files,
// for example of the tokenizer. Sources: huggingface/safetensors, README; huggingface/transformers, modeling_utils.py
// (save_pretrained, from_pretrained).
//
// If config.json sets tie_word_embeddings, the embedding and the last matrix are one tensor, which is called
// model.embed_tokens.weight here, whichever of the two names it is stored under.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/model_file.h"

namespace lockstep::checkpoint {

inline constexpr const char* kHuggingFaceConfig = "config.json";
inline constexpr const char* kGenerationConfig = "generation_config.json";
inline constexpr const char* kModelCard = "README.md";

/// Whether it is a directory with a config.json. A run directory does not count as one.
bool is_huggingface(const std::string& path);

/// Reads the weights and the text of config.json. F32, BF16 and F16 are read. The buffers rotary_emb.inv_freq of old
/// files are left out. Throws model_file_damaged or checkpoint_mismatch, with the names of the file and the tensor, if
/// the index and the files disagree or the tied tensors differ. Also throws what SafetensorsFile throws.
ModelFile read_huggingface(const std::string& directory);

struct HuggingFaceOptions {
  DType dtype = DType::fp32;                      // fp32, bf16 or fp16
  std::uint64_t max_shard_bytes = 5'000'000'000;  // limit for the tensors in one file; a single larger one is allowed
};
/// Writes a directory with `files` (names and contents) and what `write_weights` writes to the directory `partial`. The
/// directory appears under its name when it is complete. An existing one is replaced if it contains only the files of a
/// model or of an adapter. Otherwise it is left alone, and data_exists is thrown.
void write_model_directory(const std::string& directory, const std::map<std::string, std::string>& files,
                           const std::function<void(const std::string& partial)>& write_weights);
/// The same with the weights of a model. `files`: all other files, including config.json. If that describes a composite
/// model, what is carried is among the tensors. Throws what write_safetensors() throws.
void write_huggingface(const std::string& directory, std::vector<NamedTensor> tensors,
                       const std::map<std::string, std::string>& files, const HuggingFaceOptions& options);

/// The files in a directory that belong to a tokenizer or to text generation, by name. Throws cannot_open if
/// there is no such directory.
std::map<std::string, std::string> read_tokenizer_files(const std::string& directory);

}  // namespace lockstep::checkpoint
