// lockstep checkpoint info | verify | diff | export | import: commands of one process that work on finished files.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/version.h"
#include "checkpoint/compare.h"
#include "checkpoint/finite.h"
#include "checkpoint/model_file.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/state_group.h"
#include "checkpoint/torchvision.h"
#include "comm/world.h"
#include "commands/commands.h"
#include "commands/report.h"
#include "lockstep/error.h"
#include "models/resnet_onnx.h"
#include "models/resnet_table.h"
#include "tasks/image_classification/description.h"
#include "tasks/task.h"
#include "train/inference.h"

namespace lockstep::commands {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSafetensors = ".safetensors", kOnnx = ".onnx";

/// What happens to a file that exists under the name of the output.
enum class Existing : std::uint8_t { keep, replace };

std::string text_of(const nlohmann::json& value) {
  return printable(value.is_string() ? value.get<std::string>() : value.dump());
}

/// A list as "a, b, c", of which a long one is cut.
std::string short_text_of(const nlohmann::json& value) {
  if (!value.is_array()) return text_of(value);
  constexpr std::size_t kMaxItems = 12;
  std::string text;
  for (std::size_t i = 0; i < std::min(value.size(), kMaxItems); ++i) text += (i ? ", " : "") + text_of(value[i]);
  if (value.size() > kMaxItems) text += fmt::format(" and {} more", value.size() - kMaxItems);
  return text.empty() ? "none" : text;
}

// ---------------------------------------------------------------------------------------------------------- info

Json dimensions(const Shape& shape) {
  Json out = Json::array();
  for (int i = 0; i < shape.rank(); ++i) out.push_back(shape[i]);
  return out;
}

/// "(64, 3, 3, 3)"
std::string shape_text(const Json& dimensions) {
  std::string text = dimensions.dump();
  std::ranges::replace(text, '[', '(');
  std::ranges::replace(text, ']', ')');
  for (std::size_t at = text.find(','); at != std::string::npos; at = text.find(',', at + 1)) text.insert(at + 1, " ");
  return text;
}

Json describe(checkpoint::Reader& reader) {
  const nlohmann::json& state = reader.state();
  Json out;
  out["file"] = reader.path();
  out["size_bytes"] = reader.header().file_bytes;
  for (const char* key : {"format_version", "model", "inference", "precision", "step", "epoch", "samples",
                          "global_batch", "seed", "quality"})
    if (state.contains(key)) out[key] = state[key];
  std::int64_t n_parameters = 0;
  Json tensors = Json::array();
  for (const checkpoint::TensorEntry& tensor : reader.tensors()) {
    if (checkpoint::is_in(checkpoint::StateGroup::parameters, tensor.path)) n_parameters += tensor.shape.n_elements();
    tensors.push_back({{"name", tensor.path},
                       {"shape", dimensions(tensor.shape)},
                       {"size_bytes", tensor.size_bytes()},
                       {"xxh3", fmt::format("{:016x}", tensor.hash)}});
  }
  out["parameters"] = n_parameters;
  out["tensors"] = tensors;
  return out;
}

Json describe_safetensors(const std::string& path) {
  const checkpoint::ModelFile file = checkpoint::read_model_file(path);
  Json out;
  out["file"] = path;
  out["size_bytes"] = std::filesystem::file_size(path);
  for (const auto& [key, value] : file.state.items()) out[key] = value;
  std::int64_t n_parameters = 0;
  Json tensors = Json::array(), not_finite = Json::array();
  for (const checkpoint::LoadedTensor& tensor : checkpoint::from_torchvision(file.tensors).tensors) {
    if (checkpoint::is_in(checkpoint::StateGroup::parameters, tensor.path)) n_parameters += tensor.shape.n_elements();
    tensors.push_back({{"name", checkpoint::tensor_name(tensor.path)},
                       {"shape", dimensions(tensor.shape)},
                       {"size_bytes", tensor.values.size() * sizeof(float)}});
    if (!checkpoint::is_finite(tensor.values)) not_finite.push_back(checkpoint::tensor_name(tensor.path));
  }
  if (!not_finite.empty()) out["not_finite"] = not_finite;
  out["parameters"] = n_parameters;
  out["tensors"] = tensors;
  return out;
}

int info(const std::string& file, const std::string& json) {
  check_outputs({json}, {file});
  Json description;
  if (checkpoint::is_safetensors(file)) {
    description = describe_safetensors(file);
  } else {
    checkpoint::Reader reader(file);
    description = describe(reader);
  }
  std::string text;
  for (const auto& [key, value] : description.items())
    if (!value.is_structured()) text += fmt::format("{:<18} {}\n", key, text_of(value));
  if (description.contains("model"))
    for (const auto& [key, value] : description["model"].items())
      text += fmt::format("{:<18} {}\n", "model." + key, text_of(value));
  if (description.contains("inference"))
    for (const auto& [key, value] : description["inference"].items())
      text += fmt::format("{:<18} {}\n", key, short_text_of(value));
  if (description.contains("not_finite"))
    text += fmt::format("{:<18} {}\n", "not finite", short_text_of(description["not_finite"]));
  text += fmt::format("\n{:<56} {:<20} {:>12} {}\n", "tensor", "shape", "size_bytes", "xxh3");
  for (const Json& tensor : description["tensors"])
    text += fmt::format("{:<56} {:<20} {:>12} {}\n", text_of(tensor["name"]), shape_text(tensor["shape"]),
                        tensor["size_bytes"].get<std::uint64_t>(), tensor.value("xxh3", ""));
  report(json, description, text);
  return kExitDone;
}

// -------------------------------------------------------------------------------------------------- verify, diff

int verify(const std::string& file) {
  const checkpoint::Verdict verdict = checkpoint::verify(file);
  // A missing file, or one that is not a checkpoint, is an error with a remedy. Damage is a result.
  if (!verdict.good && verdict.code != ErrorCode::checkpoint_damaged) throw Error(verdict.code, verdict.sentence);
  print_text("{}\n", verdict.sentence);
  return verdict.good ? kExitDone : kExitFailed;
}

int diff(const std::string& a, const std::string& b) {
  const checkpoint::Comparison result = checkpoint::compare(a, b);
  for (const auto& tensor : result.differing) {
    if (tensor.shape_a != tensor.shape_b)
      print_text("{}: shapes {} and {}\n", tensor.path, tensor.shape_a.text(), tensor.shape_b.text());
    else
      print_text("{}: {} of {} values differ, by at most {:.6g}, the first one at {}\n", tensor.path,
                 tensor.n_differing, tensor.n_values, tensor.max_absolute, tensor.first_index);
  }
  for (const std::string& name : result.only_in_a) print_text("{}: only in {}\n", name, a);
  for (const std::string& name : result.only_in_b) print_text("{}: only in {}\n", name, b);
  for (const std::string& key : result.state_keys) print_text("state: {} differs\n", key);
  if (result.equal()) {
    print_text("All bytes of all {} tensors are equal.\n", result.n_compared);
    return kExitDone;
  }
  print_text("{} of {} common tensors differ, {} are only in the first file, {} only in the second.\n",
             result.differing.size(), result.n_compared, result.only_in_a.size(), result.only_in_b.size());
  return kExitFailed;
}

// ------------------------------------------------------------------------------------------------ export, import

void require_replaceable(const std::string& source, const std::string& target, Existing existing) {
  require(existing == Existing::replace || !std::filesystem::exists(target), ErrorCode::data_exists,
          "{} already exists; use --force to replace it", target);
  check_outputs({target}, {source});
}

int export_safetensors(const std::string& source, const std::string& target) {
  checkpoint::Reader reader(source);
  const std::int64_t step = reader.step();
  const auto tensors = checkpoint::to_torchvision(checkpoint::load_all(source), step);
  require(!tensors.empty(), ErrorCode::checkpoint_mismatch, "{} has no parameters", source);
  checkpoint::write_safetensors(target, tensors, checkpoint::export_metadata(reader.state()));
  print_text("{}: {} tensors of step {}, with torchvision's names\n", target, tensors.size(), step);
  return kExitDone;
}

/// Of images as the file records them; otherwise of normalised images of the usual size.
int export_onnx(const std::string& source, const std::string& target) {
  const checkpoint::ModelFile file = checkpoint::read_model_file(source);
  Config config;
  train::set_model(config, file);
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
  options.metadata.erase("format");  // of .safetensors
  const std::string bytes = models::resnet_onnx(config.model, options, [&](const std::string& name) {
    const auto found = std::ranges::find(file.tensors, name, &checkpoint::NamedTensor::name);
    require(found != file.tensors.end(), ErrorCode::checkpoint_mismatch, "{} has no tensor {}", source, name);
    return models::OnnxTensor{.shape = found->shape, .values = found->values};
  });
  PendingFile pending(target, PartialName::fixed, ErrorCode::checkpoint_write);
  const Descriptor out = pending.create();
  write_at(out, pending.partial_path(), std::as_bytes(std::span(bytes)), 0, ErrorCode::checkpoint_write);
  pending.publish();
  print_text("{}: {}-{} for {} of {}x{} pixels\n", target, config.model.family, config.model.depth, input,
             options.width, options.height);
  return kExitDone;
}

int export_file(const std::string& source, const std::string& target, Existing existing) {
  const bool is_onnx = target.ends_with(kOnnx);
  require(is_onnx || checkpoint::is_safetensors(target), ErrorCode::usage,
          "the target must end in {} or {}, found {}: no other format is supported", kSafetensors, kOnnx, target);
  require_replaceable(source, target, existing);
  return is_onnx ? export_onnx(source, target) : export_safetensors(source, target);
}

int import_file(const std::string& source, const std::string& target, Existing existing) {
  require(checkpoint::is_safetensors(source), ErrorCode::usage,
          "the source must end in {}, found {}: no other format is supported", kSafetensors, source);
  require(target.ends_with(".h5"), ErrorCode::usage, "the checkpoint's name must end in .h5, found {}", target);
  require_replaceable(source, target, existing);
  std::vector<checkpoint::NamedTensor> tensors = checkpoint::read_safetensors(source);
  checkpoint::require_finite(source, tensors);
  models::TensorShapes shapes;
  for (const checkpoint::NamedTensor& tensor : tensors) shapes[tensor.name] = tensor.shape;
  Config config;
  config.model = models::infer_resnet(shapes, source);
  const Config::Model& model = config.model;
  checkpoint::StateJson state = {{"model", checkpoint::StateJson(tasks::make_task(config)->model_stamp())},
                                 {"precision", "fp32"},
                                 {"step", 0},
                                 {"epoch", 0},
                                 {"samples", 0}};
  const checkpoint::StateJson recorded =
      checkpoint::state_of_metadata(checkpoint::read_safetensors_metadata(source), source);
  if (recorded.contains("inference"))
    state["inference"] =
        checkpoint::StateJson(tasks::to_json(tasks::image_description(recorded["inference"], model.classes, source)));
  const checkpoint::LoadedFile file = checkpoint::from_torchvision(std::move(tensors));
  std::vector<checkpoint::TensorSource> sources;
  for (const checkpoint::LoadedTensor& tensor : file.tensors)
    sources.push_back({tensor.path, tensor.shape,
                       [&tensor](std::span<float> out) { std::ranges::copy(tensor.values, out.begin()); }});
  checkpoint::save(target, sources, state, *comm::single_world());
  print_text("{}: {} tensors; {}-{}, stem {}, {} classes\n", target, sources.size(), model.family, model.depth,
             model.stem, model.classes);
  return kExitDone;
}

struct Names {
  std::string first, second, json;
  bool replace = false;
  Existing existing() const { return replace ? Existing::replace : Existing::keep; }
};

}  // namespace

void add_checkpoint(CLI::App& app, Run& run) {
  CLI::App* group = app.add_subcommand("checkpoint", "Inspect, verify, compare and convert checkpoints");
  group->require_subcommand(1);
  const auto names = std::make_shared<Names>();

  CLI::App* command = group->add_subcommand("info", "Print what a checkpoint or a .safetensors file contains");
  command->add_option("FILE", names->first, "The checkpoint or .safetensors file")->required();
  add_json(*command, names->json);
  command->callback([&run, names] { run = [names] { return info(names->first, names->json); }; });

  command = group->add_subcommand("verify", "Verify every byte; exit status 1 if the file is damaged");
  command->add_option("FILE", names->first, "The checkpoint")->required();
  command->callback([&run, names] { run = [names] { return verify(names->first); }; });

  command = group->add_subcommand("diff",
                                  "Compare two checkpoints; exit status 0 only if all bytes of all tensors are equal");
  command->add_option("A", names->first, "The first checkpoint")->required();
  command->add_option("B", names->second, "The second checkpoint")->required();
  command->callback([&run, names] { run = [names] { return diff(names->first, names->second); }; });

  command = group->add_subcommand(
      "export", "Export a checkpoint as a .safetensors file with torchvision's names, or as an .onnx file");
  command->add_option("FILE", names->first, "The checkpoint")->required();
  command->add_option("TARGET", names->second, "The file to write, ending in .safetensors or .onnx")->required();
  command->add_flag("--force", names->replace, "Replace TARGET if it exists");
  command->callback(
      [&run, names] { run = [names] { return export_file(names->first, names->second, names->existing()); }; });

  command = group->add_subcommand("import", "Convert a .safetensors file of a ResNet to a checkpoint at step 0");
  command->add_option("SOURCE", names->first, "A .safetensors file with torchvision's names")->required();
  command->add_option("OUT", names->second, "The checkpoint to write, ending in .h5")->required();
  command->add_flag("--force", names->replace, "Replace OUT if it exists");
  command->callback(
      [&run, names] { run = [names] { return import_file(names->first, names->second, names->existing()); }; });
}

}  // namespace lockstep::commands
