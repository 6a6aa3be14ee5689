#include "tasks/language_modelling/model_source.h"

#include <fmt/ranges.h>

#include <filesystem>
#include <string>

#include "base/file.h"
#include "lockstep/error.h"
#include "text/tokenizer.h"

namespace lockstep::tasks {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFileBytes = 1 << 20;

/// A directory stands for the config.json in it.
std::string config_file(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error) ? (fs::path(path) / "config.json").string() : path;
}

}  // namespace

models::LlamaConfig model_source(const Config::Model& model) {
  const std::string presets = fmt::format("{}", fmt::join(models::llama_presets(), ", "));
  if (model.config.starts_with('{')) return models::parse_llama_config(model.config, "model.config");
  if (const auto preset = models::llama_preset(model.config)) return *preset;
  const bool is_from_directory = model.config.empty() && model.from != Config::Model{}.from;
  require(is_from_directory || !model.config.empty(), ErrorCode::config_range,
          "model.config: expected a preset ({}) or the path of a config.json, or model.from: DIRECTORY, found nothing",
          presets);
  const std::string path =
      is_from_directory ? (fs::path(model.from) / "config.json").string() : config_file(model.config);
  std::error_code error;
  require(fs::exists(path, error), ErrorCode::config_range, "{}: expected {}, found no {}",
          is_from_directory ? "model.from" : "model.config",
          is_from_directory ? "a directory with a config.json"
                            : fmt::format("a preset ({}) or the path of a config.json", presets),
          path);
  return models::parse_llama_config(read_file(path, kMaxFileBytes), path);
}

std::string tokenizer_hash(const std::string& directory) {
  std::error_code error;
  return fs::exists(fs::path(directory) / "tokenizer.json", error) ? text::Tokenizer::open(directory).hash() : "";
}

}  // namespace lockstep::tasks
