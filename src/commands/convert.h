// lockstep checkpoint export | import | merge: converts checkpoints to and from the formats of other programs.
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
void export_file(const std::string& source, const std::string& target, const ExportOptions& options);

struct ImportOptions {
  std::string format;  // "llama2c"; otherwise the file or directory tells it
  std::string base;    // of adapters: their model; empty: the one that they name
  Existing existing = Existing::keep;
};
/// Imports a .safetensors file, a Hugging Face or PEFT directory, or a file of llama2.c as a checkpoint.
void import_file(const std::string& source, const std::string& target, const ImportOptions& options);

/// The model `base` with adapters added to its weights: a checkpoint, a .safetensors file or a directory.
void merge_files(const std::string& base, const std::string& adapters, const std::string& target,
                 const ExportOptions& options);

// Functions that convert.cpp and adapter_files.cpp share
/// Whether a checkpoint has only the adapters of a model (model.lora).
bool is_adapter_file(const std::string& path);
/// Exports a checkpoint with adapters as a PEFT directory.
void export_adapters(const std::string& source, const std::string& target, const ExportOptions& options);
/// Imports the adapters of a PEFT directory as a checkpoint. `base`: the model to which they belong; empty: the one
/// that they name.
void import_adapters(const std::string& source, const std::string& target, const std::string& base);
/// Throws data_exists if the target exists and must be kept, and usage if it is or contains one of the sources (some
/// may be empty).
void require_replaceable(const std::vector<std::string>& sources, const std::string& target, Existing existing);
/// The state of an imported model, whose keys are those of `model.`. `recorded`: of its file, how samples become
/// inputs.
checkpoint::StateJson initial_state(checkpoint::StateJson model, const checkpoint::StateJson& recorded = {});
/// Writes a checkpoint. Returns the number of tensors.
std::size_t save_imported(const std::string& target, std::vector<checkpoint::NamedTensor> tensors,
                          const checkpoint::StateJson& state);
/// What a directory has besides the decoder's weights: the files of the tokenizer, config.json, the model card, and the
/// tensors of other parts. `config` is that of the run, with the options applied.
struct Published {
  std::map<std::string, std::string> files;
  Config config;
  std::vector<checkpoint::NamedTensor> carried;
};
struct PublishedModel {
  std::string config_json;  // the content of config.json; empty: made from the model. Adapters have none
  std::string tokenizer;    // the directory from which it is copied; empty: that of the training
  DType dtype = DType::fp32;
  std::string merged_base;  // the model into which adapters were merged; may be empty
};
/// `source`: the checkpoint of `file`, from whose run the rest is taken.
Published published(const std::string& source, const std::string& target, const checkpoint::ModelFile& file,
                    const ExportOptions& options, const PublishedModel& model);
/// The config.json of a directory from which a model came, for this type of its tensors.
std::string with_dtype(const std::string& config_json, DType dtype);
/// Writes a directory of Hugging Face.
void write_directory(const std::string& target, std::vector<checkpoint::NamedTensor> tensors, DType dtype,
                     const Published& published);
/// Tells the user about a card without a licence.
void note_license(const Config& config, const std::string& target);
/// The value of --dtype.
DType dtype_named(const std::string& text);
/// Whether the ending of the name asks for a file. A directory may have any other name.
bool names_a_file(const std::string& target);

}  // namespace lockstep::commands
