// lockstep checkpoint export | import: converts checkpoints to and from the formats of other programs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/model_file.h"
#include "lockstep/config.h"

namespace lockstep::commands {

/// What to do with an existing file or directory that has the name of the output.
enum class Existing : std::uint8_t { keep, replace };

struct ExportOptions {
  std::string dtype;           // of a directory: fp32, bf16 or fp16; empty: that of the imported directory, else fp32
  std::string files;           // for a directory: another one, whose tokenizer is copied; empty: that of the run
  std::string base;            // of adapters: the path that their export names; empty: that of the run
  std::string max_shard_size;  // of a directory: "5GB"; empty: as the run has it
  std::string license;         // of a directory: for its card; empty: as the run has it
  Existing existing = Existing::keep;
  checkpoint::WeightsOf weights = checkpoint::WeightsOf::model;
};
/// Exports a checkpoint as a .safetensors or .onnx file, or as a Hugging Face or PEFT directory.
int export_file(const std::string& source, const std::string& target, const ExportOptions& options);

enum class ImportFormat : std::uint8_t { automatic, llama2c };
struct ImportOptions {
  ImportFormat format = ImportFormat::automatic;
  std::string base;  // of adapters: their model; empty: the one that they name
  Existing existing = Existing::keep;
};
/// Imports a .safetensors file, a Hugging Face or PEFT directory, or a file of llama2.c as a checkpoint.
int import_file(const std::string& source, const std::string& target, const ImportOptions& options);

// Functions that these commands share with adapter_files.cpp
/// Throws data_exists if the target exists and must be kept, and usage if it is or contains one of the sources (some
/// may be empty).
void require_replaceable(const std::vector<std::string>& sources, const std::string& target, Existing existing);
/// The state of an imported model, whose keys are those of `model.`.
checkpoint::StateJson initial_state(checkpoint::StateJson model);
/// Writes a checkpoint. Returns the number of tensors.
std::size_t save_imported(const std::string& target, std::vector<checkpoint::NamedTensor> tensors,
                          const checkpoint::StateJson& state);
/// What a directory has besides its weights: the files of the tokenizer, and the model card. `config` is that of the
/// run, with the options applied.
struct Published {
  std::map<std::string, std::string> files;
  Config config;
};
/// For a PEFT directory with the adapters of `source`.
Published published_adapters(const std::string& source, const std::string& target, const checkpoint::ModelFile& file,
                             const ExportOptions& options);
/// For a model into which the adapters of `source` were merged; `files` has its config.json, too.
Published published_merged(const std::string& source, const std::string& target, const checkpoint::ModelFile& model,
                           const checkpoint::ModelFile& base, DType dtype, const ExportOptions& options);
/// Tells the user about a card without a licence.
void note_license(const Config& config, const std::string& target);
/// The value of --dtype.
DType dtype_named(const std::string& text);
/// Whether the ending of the name asks for a file. A directory may have any other name.
bool names_a_file(const std::string& target);

}  // namespace lockstep::commands
