#include "commands/generate_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "commands/model_argument.h"
#include "config/parser.h"
#include "data/text_file.h"
#include "inference/adapters.h"
#include "inference/inference.h"
#include "lockstep/error.h"
#include "models/family.h"
#include "run/published_model.h"
#include "tasks/language_modelling/model_source.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxJsonBytes = 16 << 20;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool is_configuration(const std::string& operand) {
  const fs::path extension = fs::path(operand).extension();
  return extension == ".yaml" || extension == ".yml";
}

struct Operands {
  std::string model;                       // the path of a file, or of a Hugging Face directory
  std::string run;                         // the directory of the run that it belongs to; may be empty
  std::vector<std::string> configuration;  // files and overrides
};

/// RUN/checkpoints/FILE and RUN/model belong to RUN.
std::string run_of(const std::string& model) {
  std::error_code error;
  const fs::path file = fs::weakly_canonical(model, error), beside = file.parent_path();
  for (const fs::path& folder : {beside, beside.parent_path()})
    if (is_there(folder / "config.yaml") && is_there(folder / "checkpoints")) return folder.string();
  return "";
}

std::string model_of(const std::string& operand) {
  return is_folder(operand) && !checkpoint::is_model_directory(operand) ? checkpoint_of_run(operand) : operand;
}

Operands understand(const ModelRequest& request) {
  constexpr const char* kExpected =
      "expected a model: the directory of a run or of Hugging Face, a checkpoint, or a configuration with --checkpoint "
      "FILE";
  Operands out;
  std::vector<std::string> models;
  for (const std::string& operand : request.operands) {
    if (is_override(operand) || is_configuration(operand)) {
      out.configuration.push_back(operand);
      continue;
    }
    require(is_there(operand), ErrorCode::cannot_open, "{} does not exist: {}", operand, kExpected);
    models.push_back(operand);
  }
  if (!request.checkpoint.empty()) models.push_back(request.checkpoint);
  require(!models.empty(), ErrorCode::usage, "{}", kExpected);
  const bool describes_model = std::ranges::any_of(out.configuration, is_configuration);
  for (const std::string& key : out.configuration)
    require(describes_model || !key.starts_with("model.") || key.starts_with("model.from=") ||
                key.starts_with("model.ignore_keys="),
            ErrorCode::usage, "{} has no effect, because {} describes its own model: leave it out", key, models[0]);
  require(models.size() == 1, ErrorCode::usage, "text is generated with one model, found {} and {}: name one of them",
          models[0], models[1]);
  require(is_there(models[0]), ErrorCode::cannot_open, "{} does not exist: {}", models[0], kExpected);
  out.model = model_of(models[0]);
  out.run = run_of(out.model);
  return out;
}

/// Returns the defaults if the run has no configuration.
Config config_of_run(const std::string& run) {
  const std::string file = (fs::path(run) / "config.yaml").string();
  return is_there(file) ? config::parse({file}) : Config();
}

struct FoundTokenizer {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::string folder;
};

FoundTokenizer open_tokenizer(const std::string& path) {
  const std::string folder = is_folder(path) ? path : fs::path(path).parent_path().string();
  return {std::make_shared<const text::Tokenizer>(text::Tokenizer::open(path)), folder.empty() ? "." : folder};
}

bool has_tokenizer(const fs::path& folder) {
  return !folder.empty() && (is_there(folder / "tokenizer.json") || is_there(folder / "tokenizer.bin"));
}

/// The tokenizer in a data set; null if there is none.
std::shared_ptr<const text::Tokenizer> tokenizer_of_data(const std::string& path) {
  if (path.empty() || path == "synthetic" || !is_there(path)) return nullptr;
  const data::InputFile file(path);
  if (!data::is_text_file(file)) return nullptr;
  return std::make_shared<const text::Tokenizer>(
      text::Tokenizer::parse(path, data::read_tokenizer(file, data::open_text_file(file))));
}

/// Finds the tokenizer: --tokenizer, or else the first that exists in the model's directory, in RUN/model, in the
/// directory from which the run started, or in a data set of the configuration.
FoundTokenizer find_tokenizer(const ModelRequest& request, const Operands& operands, const Config& config) {
  if (!request.tokenizer.empty()) return open_tokenizer(request.tokenizer);
  std::vector<fs::path> folders;
  if (is_folder(operands.model)) folders.emplace_back(operands.model);
  if (!operands.run.empty()) folders.push_back(fs::path(operands.run) / "model");
  const Config of_run = operands.run.empty() ? config : config_of_run(operands.run);
  for (const Config* c : {&config, &std::as_const(of_run)})
    if (c->model.from != Config::Model{}.from) folders.emplace_back(c->model.from);
  if (!is_folder(operands.model)) folders.push_back(fs::path(operands.model).parent_path());
  for (const fs::path& folder : folders)
    if (has_tokenizer(folder)) return open_tokenizer(folder.string());
  for (const std::string& set : {config.data.train, config.data.validation, of_run.data.train, of_run.data.validation})
    if (auto tokenizer = tokenizer_of_data(set)) return {std::move(tokenizer), ""};
  fail(ErrorCode::cannot_open, "{} has no tokenizer: name one with --tokenizer, a tokenizer.json or its folder",
       operands.model);
}

void check_tokenizer(const TextModelSource& source, const std::string& path) {
  require(source.tokenizer->vocabulary_size() <= source.model.vocabulary, ErrorCode::model_mismatch,
          "the tokenizer {} has {} tokens, but {} has {}: name that of the model with --tokenizer",
          source.tokenizer->path(), source.tokenizer->vocabulary_size(), path, source.model.vocabulary);
  const auto inference = source.file.state.find("inference");
  if (inference == source.file.state.end() || !inference->is_object()) return;
  const std::string recorded = inference->value("tokenizer_hash", std::string());
  require(recorded.empty() || recorded == source.tokenizer->hash(), ErrorCode::model_mismatch,
          "{} was trained with another tokenizer than {}: name that one with --tokenizer", path,
          source.tokenizer->path());
}

/// The end tokens of generation_config.json, as in transformers; else those of config.json; else the tokenizer's. In
/// addition, the one that ended the answers in training.
std::vector<std::int32_t> end_tokens_of(const TextModelSource& source, const std::string& path) {
  std::vector<std::int64_t> ids = source.model.end_tokens;
  const std::string file = is_folder(path) ? (fs::path(path) / "generation_config.json").string() : "";
  if (!file.empty() && is_there(file)) {
    const nlohmann::json json = parse_json(read_file(file, kMaxJsonBytes), file, ErrorCode::model_file_damaged);
    if (const auto eos = json.find("eos_token_id"); json.is_object() && eos != json.end() && !eos->is_null()) {
      require(eos->is_number_integer() || eos->is_array(), ErrorCode::model_file_damaged,
              "{}: eos_token_id: expected a number or a list of numbers, found {}", file, eos->dump());
      ids.clear();
      for (const auto& id : eos->is_array() ? *eos : nlohmann::json::array({*eos})) {
        require(id.is_number_integer(), ErrorCode::model_file_damaged,
                "{}: eos_token_id: expected a list of numbers, found {}", file, id.dump());
        ids.push_back(id.get<std::int64_t>());
      }
    }
  }
  if (ids.empty() && source.tokenizer->end_token()) ids.push_back(*source.tokenizer->end_token());
  ids.push_back(run::answer_end_of(source.file.state));
  std::vector<std::int32_t> out;
  for (const std::int64_t id : ids)
    if (id >= 0 && id < source.model.vocabulary) out.push_back(static_cast<std::int32_t>(id));
  return out;
}

}  // namespace

std::vector<std::string> inputs_of(const ModelRequest& request) {
  std::vector<std::string> inputs = request.operands;
  inputs.insert(inputs.end(), {request.checkpoint, request.tokenizer});
  return inputs;
}

TextModelSource open_text_model(const ModelRequest& request) {
  const Operands operands = understand(request);
  TextModelSource out;
  out.config = config::parse(operands.configuration);
  out.sets_precision = sets_precision(operands.configuration) ||
                       std::ranges::any_of(operands.configuration, [](const auto& c) { return !is_override(c); });
  out.file = checkpoint::read_model_file(
      operands.model, request.averages ? checkpoint::WeightsOf::averages : checkpoint::WeightsOf::model);
  for (const char* key : {"model.family", "model.depth"})
    require(!out.config.origins.contains(key) || models::is_language_model(out.config.model.family), ErrorCode::usage,
            "the configuration describes a {} (model.depth), but text is generated by language models: give the "
            "configuration of {}, or none",
            out.config.model.family, operands.model);
  Config given = out.config;
  if (inference::holds_adapters(out.file)) {
    std::string base = inference::base_of(out.config.model);
    if (base.empty() && !operands.run.empty()) base = inference::base_of(config_of_run(operands.run).model);
    out.file = inference::with_base(std::move(out.file), base);
    out.base = out.file.state.at("base_path").get<std::string>();
    given.model.from = out.base;  // for its tokenizer
    out.file = inference::merged(std::move(out.file));
  }
  inference::set_model(out.config, out.file);
  require(models::is_language_model(out.config.model.family), ErrorCode::usage,
          "text is generated by language models, but {} is a {}: `lockstep predict` predicts the classes of images",
          operands.model, out.config.model.family);
  out.model = tasks::model_source(out.config.model);
  FoundTokenizer found = find_tokenizer(request, operands, given);
  out.tokenizer = std::move(found.tokenizer);
  out.tokenizer_folder = std::move(found.folder);
  check_tokenizer(out, operands.model);
  out.end_tokens = end_tokens_of(out, operands.model);
  return out;
}

generate::Decode decode_with(std::shared_ptr<const text::Tokenizer> tokenizer, text::SpecialTokens special) {
  return [tokenizer = std::move(tokenizer), special](std::span<const std::int32_t> ids) {
    return text::decode_known(*tokenizer, ids, special);
  };
}

}  // namespace lockstep::commands
