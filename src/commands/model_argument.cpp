#include "commands/model_argument.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/failure.h"
#include "base/file.h"
#include "base/hub_cache.h"
#include "base/json.h"
#include "config/parser.h"
#include "data/text_file.h"
#include "inference/adapters.h"
#include "inference/inference.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "models/family.h"
#include "run/published_model.h"
#include "tasks/image_classification/description.h"
#include "tasks/language_modelling/model_source.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxJsonBytes = 16 << 20, kMaxStatusBytes = 1 << 20;
constexpr const char* kExpected =
    "expected a model: the directory of a run or of Hugging Face, a checkpoint, a .safetensors file, or a "
    "configuration with --checkpoint FILE";

void require_there(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error)) return;
  require(!error, ErrorCode::cannot_open, "cannot open {}: {}", path, error.message());
  const std::string broken = broken_link_text(path);
  require(broken.empty(), ErrorCode::cannot_open, "{}", broken);
  fail(ErrorCode::cannot_open, "{} does not exist: {}{}", path, kExpected, hub_remedy(path));
}

/// Decides by the name. The name of a special file, such as a pipe, means nothing.
bool is_configuration(const std::string& operand) {
  const fs::path extension = fs::path(operand).extension();
  std::error_code error;
  return extension == ".yaml" || extension == ".yml" || fs::is_other(operand, error);
}

NamedModel named(const std::string& given) {
  const std::string path = find_model(given);
  require_there(path);
  if (is_folder(path) && !checkpoint::is_model_directory(path)) return {.path = checkpoint_of_run(path), .run = path};
  return {.path = path, .run = run_of(path)};
}

}  // namespace

bool is_override(const std::string& operand) { return operand.find('=') != std::string::npos && !is_there(operand); }

std::string run_argument(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const std::string broken = broken_link_text(path);
  require(fs::is_directory(path), ErrorCode::usage,
          "there is no run {}: expected a run directory, such as runs/quickstart{}", path,
          broken.empty() ? "" : fmt::format("; {}", broken));
  require(fs::exists(path + "/config.yaml"), ErrorCode::usage,
          "{} is not a run directory: it has no config.yaml, which a run writes when it starts", path);
  return path;
}

std::string status_of_run(const std::string& run) {
  if (!fs::exists(run + "/status")) return "";
  const std::string text = read_file(run + "/status", kMaxStatusBytes);
  return text.substr(0, text.find('\n'));
}

std::string checkpoint_of_run(const std::string& folder) {
  for (const char* link : {"best", "latest"}) {
    const std::string path = (fs::path(folder) / "checkpoints" / link).string();
    std::error_code error;
    if (fs::exists(path, error)) return path;
    require(!error, ErrorCode::cannot_open, "cannot open {}: {}", path, error.message());
    const std::string broken = broken_link_text(path);
    require(broken.empty(), ErrorCode::cannot_open, "{}: name another checkpoint of the run", broken);
  }
  fail(ErrorCode::cannot_open,
       "{} is a folder without checkpoints/best and checkpoints/latest: expected the directory of a run", folder);
}

std::string run_of(const std::string& model) {
  std::error_code error;
  const fs::path beside = fs::weakly_canonical(model, error).parent_path();
  if (beside.filename() == "checkpoints") return beside.parent_path().string();
  for (const fs::path& folder : {beside, beside.parent_path()})
    if (is_there(folder / "config.yaml") && is_there(folder / "checkpoints")) return folder.string();
  return "";
}

Config config_of_run(const std::string& run) {
  const std::string file = run + "/config.yaml";
  return !run.empty() && is_there(file) ? config::parse({file}) : Config();
}

void add_averages(CLI::App& app, checkpoint::WeightsOf& weights, const std::string& description) {
  app.add_flag_callback(
      "--ema", [&weights] { weights = checkpoint::WeightsOf::averages; }, description + " (ema.decay)");
}

NamedModels named_models(const ModelRequest& request) {
  NamedModels out;
  for (const std::string& operand : request.operands) {
    const bool is_file = !is_override(operand);
    if (is_file && !is_configuration(operand)) {
      out.models.push_back(named(operand));
      continue;
    }
    if (is_file) require_there(operand);
    out.has_files = out.has_files || is_file;
    out.configuration.push_back(operand);
  }
  for (const std::string& path : request.checkpoints) {
    out.models.push_back(named(path));
    out.models.back().is_option = !is_folder(path);
  }
  require(!out.models.empty(), ErrorCode::usage, "{}", kExpected);
  return out;
}

ConfiguredImages configured_images(const Config& config) {
  const Config::Data& d = config.data;
  std::vector<std::string> missing;
  if (d.image_size == 0) missing.emplace_back("data.image_size=224");
  if (d.mean.empty()) missing.emplace_back("'data.mean=[0.485, 0.456, 0.406]'");
  if (d.std.empty()) missing.emplace_back("'data.std=[0.229, 0.224, 0.225]'");
  if (!missing.empty()) return {.inference = {}, .missing = fmt::format("{}", fmt::join(missing, " "))};
  const int size = tasks::evaluation_size(d);
  const tasks::ImageDescription description{.height = size,
                                            .width = size,
                                            .channels = static_cast<int>(d.mean.size()),
                                            .resize = data::resized_side(size, d.validation_resize),
                                            .mean = {d.mean.begin(), d.mean.end()},
                                            .stddev = {d.std.begin(), d.std.end()},
                                            .class_names = {},
                                            .batch_norm_epsilon = config.batch_norm.epsilon};
  return {.inference = tasks::to_json(description), .missing = ""};
}

std::unique_ptr<Backend> open_model_backend(Config& config, const checkpoint::ModelFile& file) {
  if (config.precision_is_automatic && file.state.contains("precision"))
    config.precision =
        inference::parse_recorded({"precision=" + file.state["precision"].get<std::string>()}, file.path).precision;
  config.precision = inference_precision(config.precision);
  BackendOptions options{.device = config.device, .threads = config.cpu.threads, .records_steps = config.cuda.graph};
  const World* world = current_world().get();
  if (world != nullptr) {
    options.local_rank = world->local_rank();
    options.local_size = world->local_size();
  }
  std::unique_ptr<Backend> backend = make_backend(options);
  std::string warning;
  try {
    warning = backend->check_precision(config.precision);
    if (!warning.empty()) warning = "precision: " + warning;
  } catch (const Error& error) {
    if (!config.precision_is_automatic) throw;
    warning = fmt::format("the model is used in fp32: {}", error.what());
    config.precision = Precision::fp32;
  }
  if (!warning.empty() && (world == nullptr || world->rank() == 0)) log::warning("{}", warning);
  return backend;
}

namespace {

/// A tokenizer, and its folder.
using FoundTokenizer = std::pair<std::shared_ptr<const text::Tokenizer>, std::string>;

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
FoundTokenizer find_tokenizer(const ModelRequest& request, const NamedModel& named, const Config& config) {
  if (!request.tokenizer.empty()) return open_tokenizer(request.tokenizer);
  std::vector<fs::path> folders;
  if (is_folder(named.path)) folders.emplace_back(named.path);
  if (!named.run.empty()) folders.push_back(fs::path(named.run) / "model");
  const Config of_run = named.run.empty() ? config : config_of_run(named.run);
  for (const Config* c : {&config, &std::as_const(of_run)})
    if (c->model.from != Config::Model{}.from) folders.emplace_back(c->model.from);
  if (!is_folder(named.path)) folders.push_back(fs::path(named.path).parent_path());
  for (const fs::path& folder : folders)
    if (has_tokenizer(folder)) return open_tokenizer(folder.string());
  for (const std::string& set : {config.data.train, config.data.validation, of_run.data.train, of_run.data.validation})
    if (auto tokenizer = tokenizer_of_data(set)) return {std::move(tokenizer), ""};
  fail(ErrorCode::cannot_open, "{} has no tokenizer: name one with --tokenizer, a tokenizer.json or its folder",
       named.path);
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

std::vector<std::string> inputs_of(const ModelRequest& request, const std::string& other) {
  std::vector<std::string> inputs = request.operands;
  inputs.insert(inputs.end(), request.checkpoints.begin(), request.checkpoints.end());
  inputs.insert(inputs.end(), {request.tokenizer, other});
  return inputs;
}

TextModelSource open_text_model(const ModelRequest& request) {
  const NamedModels all = named_models(request);
  const NamedModel& named = all.models.front();
  for (const std::string& key : all.configuration)
    require(all.has_files || !key.starts_with("model.") || key.starts_with("model.from=") ||
                key.starts_with("model.ignore_keys="),
            ErrorCode::usage, "{} has no effect, because {} describes its own model: leave it out", key, named.path);
  require(all.models.size() == 1, ErrorCode::usage, "expected one model, found {} and {}: name one of them", named.path,
          all.models.back().path);
  TextModelSource out;
  out.config = config::parse(all.configuration);
  out.file = checkpoint::read_model_file(named.path, request.weights);
  for (const char* key : {"model.family", "model.depth"})
    require(!out.config.origins.contains(key) || models::is_language_model(out.config.model.family), ErrorCode::usage,
            "the configuration describes a {} (model.depth), but text is generated by language models: give the "
            "configuration of {}, or none",
            out.config.model.family, named.path);
  Config given = out.config;
  if (inference::holds_adapters(out.file)) {
    std::string base = inference::base_of(out.config.model);
    if (base.empty()) base = inference::base_of(config_of_run(named.run).model);
    out.file = inference::with_base(std::move(out.file), base);
    out.base = out.file.state.at("base_path").get<std::string>();
    given.model.from = out.base;  // for its tokenizer
    out.file = inference::merged(std::move(out.file));
  }
  inference::set_model(out.config, out.file);
  require(models::is_language_model(out.config.model.family), ErrorCode::usage,
          "text is generated by language models, but {} is a {}: `lockstep predict` predicts the classes of images",
          named.path, out.config.model.family);
  out.model = tasks::model_source(out.config.model);
  std::tie(out.tokenizer, out.tokenizer_folder) = find_tokenizer(request, named, given);
  check_tokenizer(out, named.path);
  out.end_tokens = end_tokens_of(out, named.path);
  return out;
}

generate::Decode decode_with(std::shared_ptr<const text::Tokenizer> tokenizer, text::SpecialTokens special) {
  return [tokenizer = std::move(tokenizer), special](std::span<const std::int32_t> ids) {
    return text::decode_known(*tokenizer, ids, special);
  };
}

}  // namespace lockstep::commands
