// lockstep checkpoint info | verify | diff | export | import | merge: commands of one process that work on finished
// files.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/numbers.h"
#include "base/printable.h"
#include "checkpoint/compare.h"
#include "checkpoint/composite.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/model_file.h"
#include "checkpoint/reader.h"
#include "checkpoint/tensor_names.h"
#include "commands/commands.h"
#include "commands/convert.h"
#include "commands/job.h"
#include "commands/model_argument.h"
#include "commands/report.h"
#include "inference/inference.h"
#include "lockstep/error.h"

namespace lockstep::commands {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const nlohmann::json& value) {
  return printable(value.is_string() ? value.get<std::string>() : value.dump());
}

/// Formats a list as "a, b, c", and truncates a long one.
std::string short_text_of(const nlohmann::json& value) {
  if (!value.is_array()) return text_of(value);
  constexpr std::size_t kMaxItems = 12;
  std::string text;
  for (std::size_t i = 0; i < std::min(value.size(), kMaxItems); ++i) text += (i ? ", " : "") + text_of(value[i]);
  if (value.size() > kMaxItems) text += fmt::format(" and {} more", value.size() - kMaxItems);
  return text.empty() ? "none" : text;
}

bool is_model_of_others(const std::string& file) {
  return checkpoint::is_safetensors(file) || checkpoint::is_model_directory(file);
}

/// Throws if the path is a folder that is not a model. The message suggests a file in it.
void require_no_other_folder(const std::string& path) {
  if (!is_folder(path) || checkpoint::is_model_directory(path)) return;
  for (const char* place : {"checkpoints/best", "checkpoints/latest", "best", "latest", "model.safetensors"}) {
    const std::string file = (std::filesystem::path(path) / place).string();
    require(!is_there(file), ErrorCode::usage,
            "{} is {}; expected a checkpoint, a .safetensors file or a directory of Hugging Face, such as {}", path,
            is_there(path + "/config.yaml") ? "a run" : "a folder", file);
  }
  fail(ErrorCode::usage,
       "{} is a folder; expected a checkpoint, a .safetensors file, or a directory of Hugging Face, which contains {}",
       path, checkpoint::kHuggingFaceConfig);
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

/// The size of a .safetensors file, or of all those in a directory.
std::uint64_t weights_bytes(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return std::filesystem::file_size(path);
  std::uint64_t n_bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    if (checkpoint::is_safetensors(entry.path().string())) n_bytes += entry.file_size();
  return n_bytes;
}

Json describe_model_file(const std::string& path) {
  const checkpoint::ModelFile file = checkpoint::read_model_file(path);
  Json out;
  out["file"] = path;
  out["size_bytes"] = weights_bytes(path);
  for (const auto& [key, value] : file.state.items()) out[key] = value;
  if (!file.config.empty()) {
    out["dtype"] = name(file.dtype);
    out["config"] = Json::parse(file.config);
  }
  std::int64_t n_parameters = 0;
  Json tensors = Json::array(), not_finite = Json::array();
  for (const checkpoint::NamedTensor& tensor : checkpoint::from_torchvision(checkpoint::all_tensors(file))) {
    if (checkpoint::is_in(checkpoint::StateGroup::parameters, tensor.name)) n_parameters += tensor.shape.n_elements();
    tensors.push_back({{"name", checkpoint::tensor_name(tensor.name)},
                       {"shape", dimensions(tensor.shape)},
                       {"size_bytes", tensor.n_elements() * size_bytes(tensor.dtype)}});
    bool is_finite = true;
    checkpoint::for_each_piece(tensor, [&](std::size_t, std::span<const float> values) {
      is_finite = is_finite && checkpoint::is_finite(values);
    });
    if (!is_finite) not_finite.push_back(checkpoint::tensor_name(tensor.name));
  }
  if (!not_finite.empty()) out["not_finite"] = not_finite;
  out["parameters"] = n_parameters;
  out["tensors"] = tensors;
  return out;
}

void info(const std::string& file, const std::string& json) {
  require_no_other_folder(file);
  check_outputs({json}, {file});
  Json description;
  if (is_model_of_others(file)) {
    description = describe_model_file(file);
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
}

// -------------------------------------------------------------------------------------------------- verify, diff

/// These formats have no checksums. Reading checks every size.
int verify_model_of_others(const std::string& path) {
  checkpoint::ModelFile file = checkpoint::read_model_file(path);
  if (!file.config.empty()) {
    Config config;
    inference::set_model(config, file);  // compares config.json with the tensors
  }
  const std::size_t n_carried = file.carried.size();
  file.tensors = checkpoint::all_tensors(file);
  checkpoint::check_while_read(path, file.tensors);
  checkpoint::read_through(file.tensors);
  print_text("{} is complete: {} tensors, {} bytes; all values are finite{}. Files of this format have no checksums.\n",
             path, file.tensors.size(), weights_bytes(path),
             file.config.empty() ? ""
             : n_carried == 0    ? ", and the tensors are those of its config.json"
                                 : fmt::format(", and the tensors of the decoder are those of its config.json (names "
                                                  "and shapes of the vision tower's {} tensors are not checked)",
                                               n_carried));
  return kExitDone;
}

int verify(const std::string& file) {
  require_no_other_folder(file);
  if (is_model_of_others(file)) return verify_model_of_others(file);
  const checkpoint::Verdict verdict = checkpoint::verify(file);
  // A missing file, or one that is not a checkpoint, is an error with a remedy. Damage is a result.
  if (!verdict.good && verdict.code != ErrorCode::checkpoint_damaged) throw Error(verdict.code, verdict.sentence);
  print_text("{}\n", verdict.sentence);
  return verdict.good ? kExitDone : kExitFailed;
}

int diff(const std::string& a, const std::string& b) {
  for (const std::string& file : {a, b}) require_no_other_folder(file);
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

struct Names {
  std::string first, second, third, json;
  ExportOptions exported;
  ImportOptions imported;
};

void add_base(CLI::App& command, std::string& base, const std::string& otherwise) {
  add_value(command, "--base", "DIRECTORY", base,
            "Of adapters: the model that they belong to; of a decoder: the model that it is part of. By default, " +
                otherwise);
}

void add_force(CLI::App& command, Existing& existing, const std::string& target) {
  command.add_flag_callback(
      "--force", [&existing] { existing = Existing::replace; }, "Replace " + target + " if it exists");
}

/// Options of `export` and `merge`, most of which are about published models. `of_run`: whose settings they replace.
void add_writing(CLI::App& command, ExportOptions& options, const std::string& dtype, const std::string& files,
                 const std::string& of_run) {
  add_choice(command, "--dtype", options.dtype, {"fp32", "bf16", "fp16"},
             fmt::format("Type of the tensors in a directory: {}, otherwise fp32", dtype));
  add_value(command, "--files", "DIRECTORY", options.files, "Copy the tokenizer from this directory to " + files);
  command
      .add_option(
          "--max-shard-size", options.max_shard_size,
          fmt::format("Divide a larger model among several files; by default checkpoint.max_shard_size {}, or 5GB",
                      of_run))
      ->type_name("SIZE")
      ->check(CLI::Validator(
          [](const std::string& text) {
            return parse_byte_size(text) ? std::string() : fmt::format("expected {}", kByteSizeExample);
          },
          ""));
  add_value(command, "--license", "ID", options.license,
            fmt::format("Licence for the model card, such as apache-2.0; by default model.license {}", of_run));
}

/// Sets what the command does, which a signal may stop.
void set_work(CLI::App& command, Run& run, const std::shared_ptr<Names>& names, void (*work)(const Names&)) {
  set_run(command, run, [names, work] { return stoppable([&] { work(*names); }); });
}

void add_export(CLI::App& group, Run& run, const std::shared_ptr<Names>& names) {
  CLI::App* command = group.add_subcommand("export", "Export a checkpoint for other programs");
  add_required(*command, "FILE", names->first, "The checkpoint");
  add_required(*command, "TARGET", names->second,
               "A file ending in .safetensors (names of torchvision or transformers) or .onnx (ResNets), or a "
               "directory, which transformers loads (language models), or PEFT (adapters)");
  add_writing(*command, names->exported, "that of the directory from which FILE was imported",
              "TARGET; by default, that of the run of FILE", "of the run");
  add_base(*command, names->exported.base, "model.from of the run of FILE");
  add_averages(*command, names->exported.weights, "Export the moving averages of the weights");
  add_force(*command, names->exported.existing, "TARGET");
  set_work(*command, run, names, [](const Names& n) {
    require_no_other_folder(n.first);
    export_file(n.first, n.second, n.exported);
  });
}

void add_import(CLI::App& group, Run& run, const std::shared_ptr<Names>& names) {
  CLI::App* command = group.add_subcommand("import", "Convert a model of another program to a checkpoint at step 0");
  add_required(*command, "SOURCE", names->first,
               "A .safetensors file of a ResNet with torchvision's names, a directory of a language model that "
               "transformers saved, or one of adapters that PEFT saved");
  add_required(*command, "OUT", names->second, "The checkpoint to write, ending in .h5");
  add_choice(*command, "--format", names->imported.format, {"auto", "llama2c"},
             "llama2c: SOURCE is a .bin file of llama2.c");
  add_base(*command, names->imported.base, "the one that the adapters name, if it is a directory here");
  add_force(*command, names->imported.existing, "OUT");
  set_work(*command, run, names, [](const Names& n) { import_file(n.first, n.second, n.imported); });
}

void add_merge(CLI::App& group, Run& run, const std::shared_ptr<Names>& names) {
  CLI::App* command = group.add_subcommand("merge", "Add adapters (model.lora) to the weights that they belong to");
  add_required(*command, "BASE", names->first, "The model: a directory of Hugging Face, or a checkpoint");
  add_required(*command, "ADAPTER", names->second, "A run, a checkpoint of one, or a directory of PEFT");
  add_required(*command, "OUT", names->third,
               "What to write: a checkpoint (.h5), a .safetensors file, or a directory, which transformers loads");
  add_writing(*command, names->exported, "that of BASE", "OUT; by default, that of BASE, or of the run",
              "of the run of ADAPTER");
  add_averages(*command, names->exported.weights, "Add the moving averages of the adapters");
  add_force(*command, names->exported.existing, "OUT");
  set_work(*command, run, names, [](const Names& n) {
    require_no_other_folder(n.first);
    merge_files(n.first, n.second, n.third, n.exported);
  });
}

}  // namespace

void add_checkpoint(CLI::App& app, Run& run) {
  CLI::App* group = app.add_subcommand("checkpoint", "Inspect, verify, compare and convert checkpoints");
  group->require_subcommand(1);
  const auto names = std::make_shared<Names>();

  CLI::App* command = group->add_subcommand(
      "info", "Print what a checkpoint, a .safetensors file or a directory of Hugging Face contains");
  add_required(*command, "FILE", names->first, "The checkpoint, .safetensors file or directory");
  add_json(*command, names->json);
  set_run(*command, run, [names] { info(names->first, names->json); });

  command = group->add_subcommand("verify", "Verify every byte; exit status 1 if the file is damaged");
  add_required(*command, "FILE", names->first, "The checkpoint, .safetensors file or directory of Hugging Face");
  set_run(*command, run, [names] { return verify(names->first); });

  command = group->add_subcommand("diff",
                                  "Compare two checkpoints; exit status 0 only if all bytes of all tensors are equal");
  add_required(*command, "A", names->first,
               "The first checkpoint, or a .safetensors file or directory of Hugging Face, of which weights are "
               "compared in fp32");
  add_required(*command, "B", names->second, "The second one");
  set_run(*command, run, [names] { return diff(names->first, names->second); });

  add_export(*group, run, names);
  add_import(*group, run, names);
  add_merge(*group, run, names);
}

}  // namespace lockstep::commands
