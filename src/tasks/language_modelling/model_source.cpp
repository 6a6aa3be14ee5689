#include "tasks/language_modelling/model_source.h"

#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "base/hub_cache.h"
#include "lockstep/error.h"
#include "text/tokenizer.h"

namespace lockstep::tasks {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFileBytes = 1 << 20;

/// If the path is a directory, returns the config.json in it.
std::string config_file(const std::string& path) {
  return is_folder(path) ? (fs::path(path) / "config.json").string() : path;
}

bool is_from_directory(const Config::Model& model) {
  return model.config.empty() && model.from != Config::Model{}.from;
}

/// Empty if no file describes the model.
std::string path_of_source(const Config::Model& model) {
  if (is_from_directory(model)) return (fs::path(model.from) / "config.json").string();
  const bool is_in_place = model.config.starts_with('{') || models::llama_preset(model.config);
  return is_in_place || model.config.empty() ? "" : config_file(model.config);
}

}  // namespace

models::LlamaConfig model_source(const Config::Model& model) {
  const std::string presets = fmt::format("{}", fmt::join(models::llama_presets(), ", "));
  if (model.config.starts_with('{')) return models::parse_llama_config(model.config, "model.config", model.ignore_keys);
  if (const auto preset = models::llama_preset(model.config)) return *preset;
  const std::string path = path_of_source(model);
  require(!path.empty(), ErrorCode::config_invalid,
          "model.config: expected a preset ({}) or the path of a config.json, or model.from: DIRECTORY, found nothing",
          presets);
  require(is_there(path), ErrorCode::config_invalid, "{}: expected {}, found no {}{}",
          is_from_directory(model) ? "model.from" : "model.config",
          is_from_directory(model) ? "a directory with a config.json"
                                   : fmt::format("a preset ({}) or the path of a config.json", presets),
          path, is_from_directory(model) ? hub_remedy(model.from) : "");
  return models::parse_llama_config(read_file(path, kMaxFileBytes), path, model.ignore_keys);
}

models::LlamaOptions model_options(const Config::Model& model) {
  return {.lora = model.lora, .base_in_nf4 = model.base_precision == "nf4"};
}

std::string restore_model_source(Config::Model& model, const nlohmann::json& model_stamp) {
  const std::string path = path_of_source(model);
  const auto recorded = model_stamp.find("config");
  if (path.empty() || is_there(path) || recorded == model_stamp.end() || !recorded->is_string()) return "";
  model.config = recorded->get<std::string>();
  return fmt::format("{} does not exist any more; the model is as the run recorded it", path);
}

std::string tokenizer_hash(const std::string& directory) {
  return is_there(fs::path(directory) / "tokenizer.json") ? text::Tokenizer::open(directory).hash() : "";
}

}  // namespace lockstep::tasks
