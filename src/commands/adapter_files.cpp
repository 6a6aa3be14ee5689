#include "base/file.h"
#include "base/hub_cache.h"
#include "commands/convert.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/numbers.h"
#include "checkpoint/composite.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/model_file.h"
#include "checkpoint/peft.h"
#include "checkpoint/reader.h"
#include "commands/model_argument.h"
#include "commands/report.h"
#include "inference/adapters.h"
#include "inference/inference.h"
#include "lockstep/error.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using checkpoint::ModelFile;
using checkpoint::StateJson;

void write_merged_directory(ModelFile model, const ModelFile& base, const std::string& adapters,
                            const std::string& target, const ExportOptions& options) {
  const DType dtype = options.dtype.empty() ? base.dtype : dtype_named(options.dtype);
  const bool takes_base = options.files.empty() && checkpoint::is_huggingface(base.path);
  const Published out = published(adapters, target, model, options,
                                  {.config_json = base.config.empty() ? "" : with_dtype(base.config, dtype),
                                   .tokenizer = takes_base ? base.path : options.files,
                                   .dtype = dtype,
                                   .merged_base = base.path});
  const std::size_t n_tensors = model.tensors.size() + out.carried.size();
  write_directory(target, std::move(model.tensors), dtype, out);
  print_text("{}: {} tensors in {}, {} with the adapters of {}\n", target, n_tensors, name(dtype), base.path, adapters);
  note_license(out.config, target);
}

}  // namespace

bool is_adapter_file(const std::string& path) {
  if (checkpoint::is_safetensors(path) || is_folder(path)) return false;
  const StateJson state = checkpoint::Reader(path).state();
  const auto model = state.find("model");
  return model != state.end() && model->is_object() && model->contains("lora.rank");
}

void export_adapters(const std::string& source, const std::string& target, const ExportOptions& options) {
  require(!checkpoint::is_safetensors(target) && !target.ends_with(".onnx") && !names_a_file(target), ErrorCode::usage,
          "{} has adapters, which are exported as a directory of PEFT, and {} is a file: name a directory, or merge "
          "them with `lockstep checkpoint merge BASE {} OUT`",
          source, target, source);
  require(options.dtype.empty(), ErrorCode::usage, "--dtype is for whole models; adapters are exported in fp32");
  require(options.max_shard_size.empty(), ErrorCode::usage,
          "--max-shard-size is for whole models; adapters are exported as one file");
  require_replaceable({source, options.base, options.files}, target, options.existing);
  ModelFile file = checkpoint::read_model_file(source, options.weights);
  checkpoint::check_while_read(source, file.tensors);
  const std::string base =
      options.base.empty() ? inference::base_of(config_of_run(run_of(source)).model) : options.base;
  const std::size_t n_tensors = file.tensors.size();
  const Published out =
      published(source, target, file, options, {.config_json = {}, .tokenizer = options.files, .merged_base = {}});
  checkpoint::write_peft(target, std::move(file.tensors), inference::lora_of(file), base, file.state, out.files);
  print_text("{}: {} tensors of step {}, adapters for {}\n", target, n_tensors,
             file.state.value("step", std::int64_t{0}),
             base.empty() ? "a model that is not named: --base DIRECTORY names it" : base);
  note_license(out.config, target);
}

void import_adapters(const std::string& source, const std::string& target, const std::string& base) {
  ModelFile file = checkpoint::read_model_file(source);
  checkpoint::check_while_read(source, file.tensors);
  std::vector<checkpoint::NamedTensor> adapters = file.tensors;
  const ModelFile complete = inference::with_base(std::move(file), base);
  const std::string path = complete.state.at("base_path").get<std::string>();
  StateJson state = initial_state(complete.state.at("model"), complete.state);
  state["base"] = {
      {"hash", inference::hash_of_base({complete.tensors.begin() + std::ssize(adapters), complete.tensors.end()})}};
  const std::size_t n_tensors = save_imported(target, std::move(adapters), state);
  print_text("{}: {} tensors; adapters of rank {} for {}\n", target, n_tensors,
             state.at("model").at("lora.rank").dump(), path);
}

void merge_files(const std::string& given, const std::string& adapters, const std::string& target,
                 const ExportOptions& options) {
  const std::string base = find_model(given);
  require(fs::exists(base), ErrorCode::cannot_open, "{} does not exist{}", base, hub_remedy(base));
  require(fs::exists(adapters), ErrorCode::cannot_open, "{} does not exist", adapters);
  const bool is_file = checkpoint::is_safetensors(target) || target.ends_with(".h5");
  require(is_file || !names_a_file(target), ErrorCode::usage,
          "OUT must end in .h5 or .safetensors, or be a directory, found {}: no other format is supported", target);
  require(!is_file || (options.dtype.empty() && options.files.empty() && options.max_shard_size.empty() &&
                       options.license.empty()),
          ErrorCode::usage,
          "--dtype, --files, --max-shard-size and --license are for exported directories, and {} is a file", target);
  require_replaceable({base, adapters, options.files}, target, options.existing);
  const bool is_run = is_folder(adapters) && !checkpoint::is_model_directory(adapters);
  const std::string file = is_run ? checkpoint_of_run(adapters) : adapters;
  ModelFile of_adapters = checkpoint::read_model_file(file, options.weights);
  require(
      inference::holds_adapters(of_adapters), ErrorCode::checkpoint_mismatch,
      "{} has no adapters: expected the run or the checkpoint of a training with model.lora, or a directory of PEFT",
      file);
  ModelFile model = inference::merged(inference::with_base(std::move(of_adapters), base));
  checkpoint::check_while_read(file, model.tensors);
  checkpoint::check_while_read(base, model.carried);
  if (!is_file)
    return write_merged_directory(std::move(model), checkpoint::read_model_file(base), file, target, options);
  const std::vector<checkpoint::NamedTensor> tensors = checkpoint::all_tensors(model);
  if (checkpoint::is_safetensors(target))
    checkpoint::write_safetensors(target, tensors, checkpoint::export_metadata(model.state));
  else
    save_imported(target, tensors, initial_state(model.state.at("model"), model.state));
  print_text("{}: {} tensors, {} with the adapters of {}\n", target, tensors.size(), base, file);
}

}  // namespace lockstep::commands
