#include "commands/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "base/hub_cache.h"
#include "base/model_files.h"
#include "base/numbers.h"
#include "base/version.h"
#include "checkpoint/composite.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/model_file.h"
#include "checkpoint/peft.h"
#include "checkpoint/reader.h"
#include "checkpoint/tensor_names.h"
#include "comm/world.h"
#include "commands/model_argument.h"
#include "commands/report.h"
#include "config/parser.h"
#include "inference/adapters.h"
#include "inference/inference.h"
#include "lockstep/error.h"
#include "models/family.h"
#include "models/llama_tensors.h"
#include "models/resnet_onnx.h"
#include "models/resnet_table.h"
#include "run/metrics.h"
#include "run/published_model.h"
#include "run/run_card.h"
#include "tasks/image_classification/description.h"
#include "tasks/language_modelling/model_source.h"
#include "tasks/task.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using checkpoint::StateJson;

constexpr std::string_view kSafetensors = ".safetensors", kOnnx = ".onnx";
constexpr const char* kLlama = "llama";
/// The member of a checkpoint's state that records the directory it was imported from: its dtype and its config.json.
constexpr const char* kImported = "huggingface";

/// A string member of an object; empty if it is missing or not a string.
std::string text_in(const StateJson& state, const char* object, const char* key) {
  if (!state.contains(object) || !state[object].is_object()) return "";
  const StateJson& members = state[object];
  return members.contains(key) && members[key].is_string() ? members[key].get<std::string>() : "";
}

std::string family_of(const StateJson& state) { return text_in(state, "model", "family"); }

// --------------------------------------------------------------------------------------------------------- export

void export_safetensors(const std::string& source, const std::string& target, const ExportOptions& options) {
  checkpoint::Reader reader(source);
  const std::int64_t step = reader.step();
  const checkpoint::ModelFile file = checkpoint::read_model_file(source, options.weights);
  auto tensors = checkpoint::to_torchvision(options.weights == checkpoint::WeightsOf::model
                                                ? checkpoint::load_all(source)
                                                : checkpoint::from_torchvision(file.tensors),
                                            step);
  const std::string described = checkpoint::recorded_config(file.state);
  const bool has_all = options.weights == checkpoint::WeightsOf::model && !file.carried.empty();
  if (checkpoint::is_composite(described) && !has_all) {
    models::LlamaConfig model = models::parse_llama_config(described, source);
    const Config::Model trained = config_of_run(run_of(source)).model;
    for (checkpoint::NamedTensor& tensor : inference::carried_tensors(
             model, file, {options.base, inference::base_of(trained), trained.initialize_from, source}))
      tensors.push_back(std::move(tensor));
  }
  require(!tensors.empty(), ErrorCode::checkpoint_mismatch, "{} has no parameters", source);
  checkpoint::write_safetensors(target, tensors, checkpoint::export_metadata(reader.state()));
  print_text("{}: {} tensors of step {}, with the names of {}\n", target, tensors.size(), step,
             models::is_language_model(family_of(reader.state())) ? "transformers" : "torchvision");
}

/// The exported model takes images as the file describes them. If it does not, the model takes normalised images of the
/// usual size.
void export_onnx(const std::string& source, const std::string& target, checkpoint::WeightsOf weights) {
  const checkpoint::ModelFile file = checkpoint::read_model_file(source, weights);
  require(!models::is_language_model(family_of(file.state)), ErrorCode::not_supported,
          "{} is a model of the family {}, and only ResNets are exported as {}: give a directory instead of {}, which "
          "will contain the files of transformers",
          source, kLlama, kOnnx, target);
  Config config;
  inference::set_model(config, file);
  const bool imagenet = config.model.stem == "imagenet";
  models::OnnxOptions options;
  options.height = options.width = imagenet ? 224 : 32;
  std::string input = "normalised images, since the file does not record how its images were normalised";
  if (file.state.contains("inference")) {
    const tasks::ImageDescription recorded =
        tasks::image_description(file.state["inference"], config.model.classes, source);
    for (const checkpoint::NamedTensor& tensor : file.tensors)
      require(tensor.name != "conv1.weight" || tensor.shape[1] == recorded.channels, ErrorCode::checkpoint_damaged,
              "{} describes its model wrongly: channels: expected {}, as conv1.weight has, found {}", source,
              tensor.shape[1], recorded.channels);
    options.height = recorded.height;
    options.width = recorded.width;
    options.mean = recorded.mean;
    options.stddev = recorded.stddev;
    options.batch_norm_epsilon = recorded.batch_norm_epsilon;
    input = "images with values from 0 to 1";
  }
  options.producer_version = version();
  options.metadata = checkpoint::export_metadata(file.state);
  options.metadata.erase("format");  // a key of .safetensors files only
  const std::string bytes = models::resnet_onnx(config.model, options, [&](const std::string& name) {
    const auto found = std::ranges::find(file.tensors, name, &checkpoint::NamedTensor::name);
    require(found != file.tensors.end(), ErrorCode::checkpoint_mismatch, "{} has no tensor {}", source, name);
    return models::OnnxTensor{.shape = found->shape, .values = found->values()};
  });
  PendingFile pending(target, PartialName::fixed);
  const Descriptor out = pending.create();
  write_at(out, pending.partial_path(), std::as_bytes(std::span(bytes)), 0);
  pending.publish();
  print_text("{}: {}-{} for {} of {}x{} pixels\n", target, config.model.family, config.model.depth, input,
             options.width, options.height);
}

/// The files of the tokenizer and of generation in a PEFT directory, or in the run to which a checkpoint belongs.
run::Files tokenizer_beside(const std::string& source) {
  if (is_folder(source)) return checkpoint::read_tokenizer_files(source);
  const std::string run = run_of(source);
  const std::string of_run = (fs::path(run) / "model").string();
  if (run.empty() || !is_folder(of_run)) return {};
  return checkpoint::read_tokenizer_files(of_run);
}

/// The files of the tokenizer: those in the directory `given`, with the chat template of the training, or those of the
/// training.
run::Files published_files(const std::string& source, const std::string& given, const Config& config,
                           const models::LlamaConfig& model) {
  run::Files own = tokenizer_beside(source);
  if (own.empty()) own = run::tokenizer_files(config, model);
  if (given.empty()) return own;
  run::Files files = checkpoint::read_tokenizer_files(given);
  run::complete_files(files, model, -1, own[run::kTemplateFile]);
  return files;
}

/// The versions that RUN/metrics.json records, or else those of this program.
std::string versions_of(const std::string& run) {
  const fs::path path = fs::path(run) / "metrics.json";
  std::error_code error;
  if (run.empty() || !fs::is_regular_file(path, error)) return run::versions_json();
  const auto summary = nlohmann::ordered_json::parse(read_file(path.string()), nullptr, /*allow_exceptions=*/false);
  return summary.is_object() && summary.contains("versions") ? summary["versions"].dump() : run::versions_json();
}

/// The configuration of the checkpoint's run, with the settings of the command-line options.
Config exported_config(const std::string& run, const ExportOptions& options) {
  Config config = config_of_run(run);
  if (!options.license.empty()) {
    config.model.license = options.license;
    config.origins["model.license"] = "--license";
  }
  if (!options.max_shard_size.empty()) config.checkpoint.max_shard_size = options.max_shard_size;
  config::check(config);
  return config;
}

void export_directory(const std::string& source, const std::string& target, const ExportOptions& options) {
  checkpoint::ModelFile file = checkpoint::read_model_file(source, options.weights);
  models::check_llama_tensors(models::parse_llama_config(checkpoint::recorded_config(file.state), source),
                              inference::shapes_of(file.tensors), source);
  checkpoint::check_while_read(source, file.tensors);
  const auto step = file.state.value("step", std::int64_t{0});
  const std::string imported_dtype = step == 0 ? text_in(file.state, kImported, "dtype") : "";
  const std::string imported_config = step == 0 ? text_in(file.state, kImported, "config") : "";
  PublishedModel model{.config_json = imported_config, .tokenizer = options.files, .merged_base = {}};
  for (const std::string& choice : {imported_dtype, options.dtype})
    if (!choice.empty()) model.dtype = dtype_named(choice);
  if (!imported_config.empty() && name(model.dtype) != imported_dtype)
    model.config_json = with_dtype(imported_config, model.dtype);
  const Published out = published(source, target, file, options, model);
  const std::size_t n_tensors = file.tensors.size() + out.carried.size();
  write_directory(target, std::move(file.tensors), model.dtype, out);
  std::string names;
  for (const auto& [name, content] : out.files) names += (names.empty() ? "" : ", ") + name;
  print_text("{}: {} tensors of step {} in {}, {}\n", target, n_tensors, step, name(model.dtype), names);
  if (!out.files.contains("tokenizer.json") && !out.files.contains("tokenizer.model"))
    print_text("{} has no tokenizer: --files DIRECTORY copies that of DIRECTORY\n", target);
  note_license(out.config, target);
}

// --------------------------------------------------------------------------------------------------------- import

void import_resnet(const std::string& source, const std::string& target, std::vector<checkpoint::NamedTensor> tensors,
                   const StateJson& recorded) {
  Config config;
  checkpoint::check_while_read(source, tensors);
  config.model = models::infer_resnet(inference::shapes_of(tensors), source);
  const Config::Model& model = config.model;
  StateJson state = initial_state(StateJson(tasks::make_task(config)->model_stamp()));
  if (recorded.contains("inference"))
    state["inference"] =
        StateJson(tasks::to_json(tasks::image_description(recorded["inference"], model.classes, source)));
  const std::size_t n_tensors = save_imported(target, std::move(tensors), state);
  print_text("{}: {} tensors; {}-{}, stem {}, {} classes\n", target, n_tensors, model.family, model.depth, model.stem,
             model.classes);
}

/// The hash of the tokenizer beside the weights, which is compared with that of data sets. Empty if the tokenizer is
/// not supported: the model can be converted all the same.
std::string tokenizer_hash_of(const std::string& source) {
  try {
    return tasks::tokenizer_hash(source);
  } catch (const Error& error) {
    print_text("The tokenizer is not recorded: {}\n", error.what());
    return "";
  }
}

/// `config_source` names the configuration in messages. `imported` is recorded for a later export; null: nothing is
/// recorded.
void import_llama(checkpoint::ModelFile file, const std::string& config_source, const std::string& target,
                  const StateJson& imported) {
  const models::LlamaConfig config = models::parse_llama_config(file.config, config_source);
  models::check_llama_tensors(config, inference::shapes_of(file.tensors), file.path);
  checkpoint::check_while_read(file.path, file.tensors);
  checkpoint::check_while_read(file.path, file.carried);
  StateJson state = initial_state({{"family", kLlama}, {"config", models::to_json(config).dump()}}, file.state);
  if (!imported.is_null()) state[kImported] = imported;
  if (!state.contains("inference"))
    if (const std::string hash = tokenizer_hash_of(file.path); !hash.empty())
      state["inference"] = {{"tokenizer_hash", hash}};
  const std::size_t n_tensors = save_imported(target, checkpoint::all_tensors(file), state);
  print_text("{}: {} tensors; {}, {} layers of width {}, {} parameters\n", target, n_tensors, kLlama, config.layers,
             config.width, config.n_parameters());
}

void import_directory(const std::string& source, const std::string& target) {
  checkpoint::ModelFile file = checkpoint::read_huggingface(source);
  const StateJson imported{{"dtype", name(file.dtype)}, {"config", file.config}};
  return import_llama(std::move(file), (fs::path(source) / checkpoint::kHuggingFaceConfig).string(), target, imported);
}

void import_safetensors(const std::string& source, const std::string& target) {
  checkpoint::ModelFile file = checkpoint::read_model_file(source);
  file.config = models::is_language_model(family_of(file.state)) ? checkpoint::recorded_config(file.state) : "";
  if (!file.config.empty()) return import_llama(std::move(file), source, target, nullptr);
  require(!models::has_llama_names(inference::shapes_of(file.tensors)), ErrorCode::usage,
          "{} contains the weights of a language model: give the directory of the file, which must also contain {}",
          source, checkpoint::kHuggingFaceConfig);
  return import_resnet(source, target, std::move(file.tensors), file.state);
}

}  // namespace

// ------------------------------------------------------------------------------- what adapter_files.cpp uses, too

void require_replaceable(const std::vector<std::string>& sources, const std::string& target, Existing existing) {
  require(existing == Existing::replace || !fs::exists(target), ErrorCode::data_exists,
          "{} already exists; use --force to replace it", target);
  require_no_input(target, sources);
}

DType dtype_named(const std::string& text) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
    if (text == name(dtype)) return dtype;
  fail(ErrorCode::usage, "--dtype: expected fp32, bf16 or fp16, found {}", text);
}

std::string with_dtype(const std::string& config, DType dtype) {
  auto json = nlohmann::ordered_json::parse(config);
  for (const char* key : {"torch_dtype", "dtype"})
    if (json.contains(key))
      json[key] = dtype == DType::fp32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
  return json.dump(2) + "\n";
}

Published published(const std::string& source, const std::string& target, const checkpoint::ModelFile& file,
                    const ExportOptions& options, const PublishedModel& published) {
  models::LlamaConfig model = models::parse_llama_config(checkpoint::recorded_config(file.state), source);
  const bool has_adapters = inference::holds_adapters(file);
  const std::string run = run_of(source);
  Published out{.files = {}, .config = exported_config(run, options), .carried = {}};
  if (has_adapters) {
    out.config.model.lora = inference::lora_of(file);
    if (!options.base.empty()) out.config.model.from = options.base;
  }
  out.files = published_files(source, published.tokenizer, out.config, model);
  if (!has_adapters) {
    const bool was_composite = !model.composite.empty();
    out.carried = inference::carried_tensors(
        model, file, {options.base, inference::base_of(out.config.model), out.config.model.initialize_from, source});
    const bool is_made = published.config_json.empty() || was_composite == model.composite.empty();
    out.files[checkpoint::kHuggingFaceConfig] = is_made ? models::to_json(model).dump(2) + "\n" : published.config_json;
  }
  run::add_answer_end(out.files, run::answer_end_of(file.state));
  const auto step = file.state.value("step", std::int64_t{0});
  const auto configuration = file.state.value("configuration", std::string());
  out.files[checkpoint::kModelCard] = text_of(run::make_card(
      {.config = out.config,
       .model = model,
       .files = out.files,
       .data = run::describe_data(out.config, configuration),
       .name = run.empty() ? fs::path(target).lexically_normal().filename().string() : out.config.run.name,
       .run = run,
       .configuration = configuration,
       .answer_end = run::answer_end_of(file.state),
       .step = step,
       .steps_per_epoch = file.state.value("steps_per_epoch", std::int64_t{0}),
       .is_trained = step > 0 || !published.merged_base.empty(),
       .merged_base = published.merged_base,
       .averages = options.weights == checkpoint::WeightsOf::averages,
       .slices = run::slices_of(file.state),
       .dtype = std::string(name(published.dtype)),
       .versions = versions_of(run)}));
  return out;
}

void write_directory(const std::string& target, std::vector<checkpoint::NamedTensor> tensors, DType dtype,
                     const Published& published) {
  const std::uint64_t max_shard_bytes = parse_byte_size(published.config.checkpoint.max_shard_size).value();
  tensors.insert(tensors.end(), published.carried.begin(), published.carried.end());
  checkpoint::write_huggingface(target, std::move(tensors), published.files,
                                {.dtype = dtype, .max_shard_bytes = max_shard_bytes});
}

void note_license(const Config& config, const std::string& target) {
  if (config.model.license.empty())
    print_text("{}/{} states no licence: --license ID sets it, such as apache-2.0\n", target, checkpoint::kModelCard);
}

bool names_a_file(const std::string& target) {
  constexpr std::array kExtensions{".h5", ".pt", ".pth", ".bin", ".gguf", ".npz", ".ckpt", ".json"};
  return std::ranges::any_of(kExtensions, [&](const char* extension) { return target.ends_with(extension); });
}

StateJson initial_state(StateJson model, const StateJson& recorded) {
  StateJson state{{"model", std::move(model)}, {"precision", "fp32"}, {"step", 0}, {"epoch", 0}, {"samples", 0}};
  if (recorded.contains("inference")) state["inference"] = recorded["inference"];
  return state;
}

std::size_t save_imported(const std::string& target, std::vector<checkpoint::NamedTensor> tensors,
                          const StateJson& state) {
  tensors = checkpoint::from_torchvision(std::move(tensors));
  std::vector<checkpoint::TensorSource> sources;
  for (const checkpoint::NamedTensor& tensor : tensors)
    sources.push_back({tensor.name, tensor.shape, [&tensor](std::span<float> out) { tensor.read(0, out); }});
  checkpoint::save(target, sources, state, *comm::single_world());
  return sources.size();
}

// ------------------------------------------------------------------------------------------------ the commands

void export_file(const std::string& source, const std::string& target, const ExportOptions& options) {
  const bool is_onnx = target.ends_with(kOnnx), is_safetensors = checkpoint::is_safetensors(target);
  if (is_adapter_file(source)) return export_adapters(source, target, options);
  require(
      options.base.empty() || checkpoint::is_composite(checkpoint::recorded_config(checkpoint::Reader(source).state())),
      ErrorCode::usage,
      "--base is for adapters (model.lora) and for decoders of larger models, and {} is a whole model", source);
  if (is_onnx || is_safetensors) {
    require(options.dtype.empty() && options.files.empty() && options.max_shard_size.empty() && options.license.empty(),
            ErrorCode::usage,
            "--dtype, --files, --max-shard-size and --license are for exported directories, and {} is a file", target);
    require_replaceable({source}, target, options.existing);
    return is_onnx ? export_onnx(source, target, options.weights) : export_safetensors(source, target, options);
  }
  const bool is_text = models::is_language_model(family_of(checkpoint::Reader(source).state()));
  require(is_text && !names_a_file(target), ErrorCode::usage,
          "the target must end in {} or {}{}, found {}: no other format is supported", kSafetensors, kOnnx,
          is_text ? ", or be a directory" : "", target);
  require_replaceable({source, options.files}, target, options.existing);
  return export_directory(source, target, options);
}

void import_file(const std::string& given, const std::string& target, const ImportOptions& options) {
  const std::string source = find_model(given);
  const bool is_llama2c = options.format == "llama2c";
  const bool is_directory = fs::is_directory(source);
  require(fs::exists(source), ErrorCode::cannot_open, "{} does not exist{}", source, hub_remedy(source));
  const std::string of_run = (fs::path(source) / "model").string();
  require(!is_directory || checkpoint::is_model_directory(source) || !checkpoint::is_model_directory(of_run),
          ErrorCode::usage, "{} is a run: give {}, the directory of its model", source, of_run);
  require(is_llama2c || is_directory || checkpoint::is_safetensors(source), ErrorCode::usage,
          "the source must be a directory of transformers or end in {}, found {}; --format llama2c reads a file of "
          "llama2.c",
          kSafetensors, source);
  require(target.ends_with(".h5"), ErrorCode::usage, "the checkpoint's name must end in .h5, found {}", target);
  require_replaceable({source, options.base}, target, options.existing);
  if (checkpoint::is_peft(source)) return import_adapters(source, target, options.base);
  if (is_llama2c) return import_llama(checkpoint::read_llama2c(source), source, target, nullptr);
  return is_directory ? import_directory(source, target) : import_safetensors(source, target);
}

}  // namespace lockstep::commands
