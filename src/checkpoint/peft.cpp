#include "checkpoint/peft.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "base/file.h"
#include "base/hub_cache.h"
#include "base/json.h"
#include "checkpoint/composite.h"
#include "checkpoint/huggingface.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeights = "adapter_model.safetensors";
constexpr const char* kPrefix = "base_model.model.";
constexpr std::string_view kSuffixes[] = {".lora_A.weight", ".lora_B.weight"};
/// The suffix of a module's name, after the name of a target of model.lora.targets.
constexpr std::string_view kModule = "_proj";
constexpr std::uint64_t kMaxConfigBytes = 1 << 20;

/// Keys that do not change what an adapter computes, or that are supported.
constexpr std::string_view kKnown[] = {"alpha_pattern",
                                       "auto_mapping",
                                       "base_model_name_or_path",
                                       "bias",
                                       "corda_config",
                                       "eva_config",
                                       "inference_mode",
                                       "init_lora_weights",
                                       "layers_pattern",
                                       "loftq_config",
                                       "lora_alpha",
                                       "lora_dropout",
                                       "megatron_config",
                                       "megatron_core",
                                       "peft_type",
                                       "peft_version",
                                       "qalora_group_size",
                                       "r",
                                       "rank_pattern",
                                       "revision",
                                       "runtime_config",
                                       "target_modules",
                                       "task_type",
                                       "use_rslora"};

std::string file_in(const std::string& directory, const char* name) { return (fs::path(directory) / name).string(); }

/// Whether the value is null, false, "none", or empty.
bool is_nothing(const StateJson& value) {
  return value.is_null() || value == false || value == "none" || (value.is_structured() && value.empty());
}

StateJson read_config(const std::string& path) {
  StateJson config = parse_json(read_file(path, kMaxConfigBytes), path, ErrorCode::model_file_damaged);
  require(config.is_object(), ErrorCode::model_file_damaged, "{} is damaged: it is not a JSON object", path);
  require(config.value("peft_type", StateJson()) == "LORA", ErrorCode::model_feature,
          "{}: peft_type: expected LORA, found {}: other adapters are not supported", path,
          config.value("peft_type", StateJson()).dump());
  for (const auto& [key, value] : config.items()) {
    const bool is_of_all_layers = key != "alpha_pattern" && key != "rank_pattern" && key != "bias";
    if (is_nothing(value) || (is_of_all_layers && std::ranges::find(kKnown, key) != std::end(kKnown))) continue;
    fail(ErrorCode::model_feature,
         "{}: {} is {}, which changes what the adapter computes, and is not supported: save an adapter without it",
         path, key, value.dump().substr(0, 80));
  }
  const auto is_number = [](const StateJson& value) { return value.is_number() && value.get<double>() > 0; };
  const StateJson rank = config.value("r", StateJson()), alpha = config.value("lora_alpha", StateJson());
  require(rank.is_number_integer() && rank.get<std::int64_t>() > 0 && rank.get<std::int64_t>() <= 1 << 16,
          ErrorCode::model_file_damaged, "{}: r: expected a rank from 1 to 65536, found {}", path, rank.dump());
  require(is_number(alpha), ErrorCode::model_file_damaged, "{}: lora_alpha: expected a number above 0, found {}", path,
          alpha.dump());
  return config;
}

/// "model.layers.0.self_attn.q_proj.lora_A.weight" -> "q"; empty if the name does not have this form.
std::string target_of(const std::string& tensor) {
  for (const std::string_view suffix : kSuffixes) {
    if (!tensor.ends_with(suffix)) continue;
    const std::string layer = tensor.substr(0, tensor.size() - suffix.size());
    const std::string module = layer.substr(layer.rfind('.') + 1);
    if (!layer.starts_with("model.layers.") || !module.ends_with(kModule)) return "";
    return module.substr(0, module.size() - kModule.size());
  }
  return "";
}

/// A list of modules must match the tensors of the file: PEFT would ignore other tensors, and initialise missing ones
/// at random. A string is a pattern ("all-linear"), which is not evaluated.
void require_same_targets(const StateJson& config, const std::vector<std::string>& found, const std::string& path) {
  const auto modules = config.find("target_modules");
  if (modules == config.end() || !modules->is_array()) return;
  std::set<std::string> named;
  for (const StateJson& module : *modules) {
    require(module.is_string(), ErrorCode::model_file_damaged,
            "{}: target_modules: expected the names of modules, found {}", path, module.dump());
    std::string name = module.get<std::string>();
    name = name.substr(name.rfind('.') + 1);  // "layers.0.self_attn.q_proj"
    named.insert(name.ends_with(kModule) ? name.substr(0, name.size() - kModule.size()) : name);
  }
  require(named == std::set<std::string>(found.begin(), found.end()), ErrorCode::model_mismatch,
          "{}: target_modules names {}, but {} has adapters of {}: copy both files of the adapter again", path,
          fmt::join(named, ", "), kWeights, fmt::join(found, ", "));
}

}  // namespace

bool is_peft(const std::string& path) { return is_folder(path) && is_there(fs::path(path) / kPeftConfig); }

ModelFile read_peft(const std::string& directory) {
  const std::string config_path = file_in(directory, kPeftConfig), path = file_in(directory, kWeights);
  const StateJson config = read_config(config_path);
  require(is_there(path), ErrorCode::cannot_open, "{} has no {}: save the adapter with save_pretrained() of peft",
          directory, kWeights);
  const std::shared_ptr<const SafetensorsFile> file = SafetensorsFile::open(path);
  ModelFile out{.path = directory, .state = state_of_metadata(file->metadata(), path), .tensors = {}};
  const std::vector<std::string> known = Config::Model::Lora{}.targets;
  std::set<std::string> found;
  for (const SafetensorsFile::Entry& entry : file->entries()) {
    require(entry.name.starts_with(kPrefix), ErrorCode::model_feature,
            "{} has a tensor {}: expected names that begin with {}", path, entry.name, kPrefix);
    NamedTensor tensor = file->tensor(entry);
    tensor.name = decoder_name(entry.name.substr(std::string_view(kPrefix).size()));
    const std::string target = target_of(tensor.name);
    require(std::ranges::find(known, target) != known.end(), ErrorCode::model_feature,
            "{} has a tensor {}, which is not of an adapter of q, k, v, o, gate, up or down (model.lora.targets): save "
            "one for those modules only",
            path, entry.name);
    found.insert(target);
    out.tensors.push_back(std::move(tensor));
  }
  require(!out.tensors.empty(), ErrorCode::model_file_damaged, "{} has no tensors", path);
  std::vector<std::string> targets;
  for (const std::string& target : known)
    if (found.contains(target)) targets.push_back(target);
  require_same_targets(config, targets, config_path);
  StateJson& model = out.state["model"];
  if (!model.is_object()) model = StateJson::object();
  model["family"] = "llama";
  model["lora.rank"] = config["r"];
  model["lora.alpha"] = config["lora_alpha"].get<double>();
  model["lora.targets"] = targets;
  model["lora.rslora"] = config.value("use_rslora", StateJson(false)) == true;
  const StateJson base = config.value("base_model_name_or_path", StateJson());
  out.state["base_path"] = base.is_string() ? base.get<std::string>() : "";
  return out;
}

void write_peft(const std::string& directory, std::vector<NamedTensor> tensors, const Config::Model::Lora& lora,
                const std::string& base, const StateJson& state, const std::map<std::string, std::string>& files) {
  std::vector<std::string> names;
  for (const std::string& target : lora.targets) names.push_back(target + std::string(kModule));
  // The vision tower beside a decoder has modules of the same names.
  const bool is_part = is_composite(recorded_config(state));
  nlohmann::ordered_json modules = names;
  if (is_part) modules = fmt::format(R"(model\.language_model\..*\.({}))", fmt::join(names, "|"));
  const nlohmann::ordered_json empty = nlohmann::ordered_json::object();
  const bool is_whole = lora.alpha == std::floor(lora.alpha) && lora.alpha < 1e9;
  const std::string name = hub_name_of(base);
  nlohmann::ordered_json config{{"alpha_pattern", empty},
                                {"auto_mapping", nullptr},
                                {"base_model_name_or_path", name.empty() ? base : name},
                                {"bias", "none"},
                                {"fan_in_fan_out", false},
                                {"inference_mode", true},
                                {"init_lora_weights", true},
                                {"layers_pattern", nullptr},
                                {"layers_to_transform", nullptr},
                                {"lora_alpha", lora.alpha},
                                {"lora_dropout", lora.dropout},
                                {"modules_to_save", nullptr},
                                {"peft_type", "LORA"},
                                {"r", lora.rank},
                                {"rank_pattern", empty},
                                {"revision", nullptr},
                                {"target_modules", modules},
                                {"task_type", "CAUSAL_LM"},
                                {"use_rslora", lora.rslora}};
  if (is_whole) config["lora_alpha"] = static_cast<std::int64_t>(lora.alpha);
  for (NamedTensor& tensor : tensors) tensor.name = kPrefix + (is_part ? "model.language_" + tensor.name : tensor.name);
  std::ranges::sort(tensors, {}, &NamedTensor::name);  // as the safetensors library does
  std::map<std::string, std::string> all = files;
  all[kPeftConfig] = config.dump(2) + "\n";
  write_model_directory(directory, all, [&](const std::string& partial) {
    write_safetensors(file_in(partial, kWeights), tensors, export_metadata(state));
  });
}

}  // namespace lockstep::checkpoint
