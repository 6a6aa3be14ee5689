#include "run/run_card.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/file.h"
#include "base/hub_cache.h"
#include "base/numbers.h"
#include "checkpoint/huggingface.h"
#include "config/parser.h"
#include "data/text_file.h"
#include "lockstep/error.h"
#include "run/metrics_file.h"
#include "run/published_model.h"
#include "tasks/task.h"

namespace lockstep::run {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxConfigBytes = 1 << 20;

/// The last component of a path, also for "DIRECTORY/".
std::string base_name(const std::string& path) {
  fs::path last = fs::path(path).lexically_normal();
  if (!last.has_filename()) last = last.parent_path();
  return last.filename().string();
}

// ------------------------------------------------------------------------------------------------------------- events

struct Events {
  std::vector<Json> steps, evaluations;
};

/// The complete lines about steps up to `last_step`.
Events read_events(const std::string& run, std::int64_t last_step) {
  Events out;
  const std::string path = metrics_path(run);
  if (run.empty() || !is_there(path)) return out;
  MetricsReader reader(path);
  reader.require_open();
  while (reader.next()) {
    Json event = reader.event();
    if (!(number_in(event, "step") <= static_cast<double>(last_step))) continue;
    const std::string kind = text_in(event, "event");
    if (kind == "step")
      out.steps.push_back(std::move(event));
    else if (kind == "evaluation")
      out.evaluations.push_back(std::move(event));
  }
  return out;
}

std::vector<ModelCard::Point> losses_of(const std::vector<Json>& events, const std::string& key) {
  std::vector<ModelCard::Point> out;
  for (const Json& event : events)
    if (const double loss = number_in(event, key); std::isfinite(loss))
      out.push_back({.step = event["step"].get<std::int64_t>(), .loss = loss});
  return out;
}

/// The figures of an evaluation that describe the model, not the run. `prefix` selects the plain or the averaged
/// weights.
ModelCard::Result result_of(const Json& event, const std::string& prefix, std::string of) {
  ModelCard::Result out{.of = std::move(of), .step = event["step"].get<std::int64_t>(), .measures = {}};
  for (const auto& [key, value] : event.items()) {
    if (!value.is_number() || curve_group("evaluation", key, unit_of(event)).empty()) continue;
    const bool is_of_averages = key.starts_with(tasks::kAverageKey);
    if (is_of_averages != !prefix.empty()) continue;
    out.measures.emplace_back(key.substr(prefix.size()), value.get<double>());
  }
  return out;
}

/// The results of this model, and of the best one of the run. The columns are those of the first.
std::vector<ModelCard::Result> results_of(const std::vector<Json>& evaluations, std::int64_t step,
                                          const std::string& prefix) {
  const auto loss = [&](const Json& event) { return number_in(event, prefix + "loss"); };
  const Json* best = nullptr;
  for (const Json& event : evaluations)
    if (std::isfinite(loss(event)) && (best == nullptr || loss(event) < loss(*best))) best = &event;
  if (best == nullptr) return {};
  const Json& last = evaluations.back();
  const bool is_of_model = last["step"] == step;
  std::vector<ModelCard::Result> out{result_of(last, prefix, is_of_model ? "this model" : "last evaluation before it")};
  if (best->at("step") == last["step"])
    out.front().of += ", the best of the run";
  else
    out.push_back(result_of(*best, prefix, "best of the run"));
  return out;
}

// --------------------------------------------------------------------------------------------------------------- rows

std::string range_text(const DataRange& slice) {
  if (slice.is_all()) return "all";
  return fmt::format("{} to {}", with_commas(static_cast<double>(slice.start)),
                     with_commas(static_cast<double>(slice.end - 1)));
}

/// Describes a data set. For a text set, this includes the documents and tokens of the range. Anything that cannot be
/// read is left out.
ModelCard::DataSet describe_set(const char* use, const std::string& path, const DataRange& slice) {
  ModelCard::DataSet out{.use = use, .name = base_name(path), .documents = range_text(slice), .tokens = ""};
  if (out.name.ends_with(".h5")) out.name.resize(out.name.size() - 3);
  std::error_code error;
  if (path == "synthetic" || !fs::is_regular_file(path, error)) return out;
  try {
    const data::InputFile file(path);
    const data::TextFile layout = data::open_text_file(file);
    const std::int64_t end = slice.end == 0 ? layout.n_documents : std::min(slice.end, layout.n_documents);
    if (slice.start >= end) return out;
    const std::uint64_t first = data::read_documents(file, layout, slice.start, 1).front();
    const std::uint64_t last = data::read_documents(file, layout, end, 1).front();
    const std::string all = with_commas(static_cast<double>(layout.n_documents));
    out.documents = end - slice.start == layout.n_documents ? all : out.documents + " of " + all;
    out.tokens = with_commas(static_cast<double>(last - first));
  } catch (const Error&) {  // it has changed since then: the card names it all the same
  }
  return out;
}

ModelCard::Rows model_rows(const CardSource& source) {
  const models::LlamaConfig& m = source.model;
  ModelCard::Rows rows{
      {"architecture", models::to_json(m)["architectures"][0].get<std::string>()},
      {"parameters", with_commas(static_cast<double>(m.n_parameters()))},
      {"layers", std::to_string(m.layers)},
      {"width", fmt::format("{}, {} in the feed-forward layers", m.width, m.ffn_width)},
      {"heads", fmt::format("{}, {} of keys and values, of size {}", m.heads, m.key_value_heads, m.head_size)},
      {"vocabulary", with_commas(static_cast<double>(m.vocabulary))},
      {"context", fmt::format("{} tokens", with_commas(static_cast<double>(m.positions)))}};
  if (source.answer_end >= 0) {
    const std::string text = special_token(source.files, source.answer_end);
    rows.emplace_back("end of an answer",
                      fmt::format("{}{}token {}, which {} names as eos_token_id", text, text.empty() ? "" : ", ",
                                  source.answer_end, checkpoint::kGenerationConfig));
  }
  if (!source.dtype.empty()) rows.emplace_back("type of the weights", source.dtype);
  if (source.averages) rows.emplace_back("weights", "moving averages of the trained weights (ema.decay)");
  return rows;
}

/// The keys that differ from their defaults, and those that every reader of a card expects.
ModelCard::Rows hyperparameter_rows(const CardSource& source) {
  constexpr std::array<std::string_view, 9> kAlways{"precision",
                                                    "run.seed",
                                                    "data.sequence_length",
                                                    "data.pack",
                                                    "train.global_batch",
                                                    "optimizer.kind",
                                                    "schedule.kind",
                                                    "optimizer.learning_rate",
                                                    "optimizer.weight_decay"};
  constexpr std::array<std::string_view, 3> kElsewhere{"data.start", "data.end", "model.family"};
  if (source.configuration.empty()) return {};
  std::map<std::string, std::string> defaults;
  for (const auto& [key, value] : config::values_in(config::learning_yaml(Config{}))) defaults[key] = value;
  const bool has_adapters = source.config.model.lora.is_on();
  ModelCard::Rows rows;
  for (const auto& [key, value] : config::values_in(source.configuration)) {
    if (std::ranges::find(kElsewhere, std::string_view(key)) != kElsewhere.end()) continue;
    const bool is_default =
        defaults.contains(key) && defaults[key] == value && !(has_adapters && key.starts_with("model.lora."));
    if (!is_default || std::ranges::find(kAlways, std::string_view(key)) != kAlways.end())
      rows.emplace_back(key, value);
  }
  const Config::Train& train = source.config.train;
  if (train.max_steps > 0 && source.step >= train.max_steps)
    rows.emplace_back("train.max_steps", std::to_string(train.max_steps));
  else
    rows.emplace_back("train.epochs", std::to_string(train.epochs));
  return rows;
}

ModelCard::Rows training_rows(const CardSource& source, const Events& events) {
  ModelCard::Rows rows{{"steps", with_commas(static_cast<double>(source.step))}};
  if (source.steps_per_epoch > 0)
    rows.emplace_back("epochs", fmt::format("{:.2f}", static_cast<double>(source.step) /
                                                          static_cast<double>(source.steps_per_epoch)));
  if (events.steps.empty()) return rows;
  const Json& last = events.steps.back();
  if (const double tokens = number_in(last, "trained_tokens"); std::isfinite(tokens))
    rows.emplace_back("predicted tokens", with_commas(tokens));
  std::vector<int> ranks;
  for (const Json& event : events.steps)
    if (const double n = number_in(event, "ranks"); std::isfinite(n) && (ranks.empty() || ranks.back() != n))
      ranks.push_back(static_cast<int>(n));
  if (!ranks.empty()) rows.emplace_back("ranks", fmt::format("{}", fmt::join(ranks, ", then ")));
  if (const double seconds = number_in(last, "training_seconds"); std::isfinite(seconds))
    rows.emplace_back("time of the steps", fmt::format("{} s", with_commas(std::max(1.0, seconds))));
  return rows;
}

ModelCard::Rows version_rows(const std::string& versions) {
  const Json json = Json::parse(versions, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  ModelCard::Rows rows{{"Lockstep", text_in(json, "version")}};
  if (const std::string commit = text_in(json, "commit"); !commit.empty()) rows.front().second += ", commit " + commit;
  rows.emplace_back("compiler", text_in(json, "compiler"));
  std::vector<std::string> libraries;
  if (json.contains("libraries") && json["libraries"].is_object())
    for (const auto& [name, version] : json["libraries"].items())
      if (version.is_string()) libraries.push_back(fmt::format("{} {}", name, version.get<std::string>()));
  rows.emplace_back("libraries", fmt::format("{}", fmt::join(libraries, ", ")));
  return rows;
}

/// The current range, as in the recorded configuration.
DataRange present_range(const Config& config, const std::string& configuration) {
  return range_in(configuration, {.start = config.data.start, .end = config.data.end});
}

void add_data(const CardSource& source, ModelCard& card) {
  DataRange present = present_range(source.config, source.configuration);
  present.steps = source.step - source.slices.begin;
  card.data = source.data;
  if (!source.config.data.validation.empty()) card.validation_set = card.data.back().name;
  const auto add = [&](const DataRange& slice) {
    card.slices.emplace_back(range_text(slice), with_commas(static_cast<double>(slice.steps)));
  };
  for (const DataRange& slice : source.slices.earlier) add(slice);
  if (!present.is_all() || !card.slices.empty()) add(present);
}

/// "trained from random weights", and the model that it started from, as the Hub calls it.
void add_origin(const CardSource& source, ModelCard& card) {
  const Config::Model& model = source.config.model;
  const bool has_from = model.from != Config::Model{}.from;
  const bool is_merged = !source.merged_base.empty();
  const std::string& path = is_merged                                                        ? source.merged_base
                            : model.initialize_from.empty() || (card.is_adapter && has_from) ? model.from
                                                                                             : model.initialize_from;
  if (!source.is_trained) {
    card.origin = "converted";
  } else if (path.empty() || path == Config::Model{}.from) {
    card.origin = "trained from random weights";
  } else {
    const std::string name = is_hub_name(path) && !is_there(path) ? path : name_of_model(path);
    card.origin = fmt::format("trained {} `{}`{}", card.is_adapter || is_merged ? "as adapters of" : "further from",
                              name, is_merged ? " and merged into its weights" : "");
    if (is_hub_name(name)) card.base_model = name;
  }
}

}  // namespace

std::string name_of_model(const std::string& path) {
  const fs::path config = fs::path(path) / checkpoint::kHuggingFaceConfig;
  std::error_code error;
  if (fs::is_regular_file(config, error) && fs::file_size(config, error) <= kMaxConfigBytes) {
    const Json json = Json::parse(read_file(config.string()), nullptr, /*allow_exceptions=*/false);
    if (const std::string name = text_in(json, "_name_or_path"); is_hub_name(name)) return name;
  }
  if (const std::string name = hub_name_of(path); !name.empty()) return name;
  return base_name(path);
}

std::vector<ModelCard::DataSet> describe_data(const Config& config, const std::string& configuration) {
  const Config::Data& data = config.data;
  std::vector<ModelCard::DataSet> out;
  if (!data.train.empty())
    out.push_back(describe_set(ModelCard::kTraining, data.train, present_range(config, configuration)));
  if (!data.validation.empty()) out.push_back(describe_set("validation", data.validation, {}));
  return out;
}

ModelCard make_card(const CardSource& source) {
  const std::string prefix = source.averages ? std::string(tasks::kAverageKey) : "";
  ModelCard card;
  card.name = source.name;
  card.license = source.config.model.license;
  card.model_type = models::to_json(source.model)["model_type"].get<std::string>();
  card.is_adapter = source.config.model.lora.is_on() && source.merged_base.empty();
  if (card.is_adapter && source.config.model.base_precision == "nf4") card.nf4_compute = name(source.config.precision);
  card.has_tokenizer = source.files.contains("tokenizer.json") || source.files.contains("tokenizer.model");
  card.has_answer_end = source.answer_end >= 0;
  card.model = model_rows(source);
  card.hyperparameters = hyperparameter_rows(source);
  card.versions = version_rows(source.versions);
  const auto tokenizer_config = source.files.find("tokenizer_config.json");
  card.has_chat_template = source.files.contains("chat_template.jinja") ||
                           (tokenizer_config != source.files.end() &&
                            tokenizer_config->second.find("\"chat_template\"") != std::string::npos);
  add_origin(source, card);
  if (!source.is_trained) return card;
  add_data(source, card);
  const Events events = read_events(source.run, source.step);
  card.training = training_rows(source, events);
  card.training_losses = losses_of(events.steps, "loss");
  card.validation_losses = losses_of(events.evaluations, prefix + "loss");
  card.results = results_of(events.evaluations, source.step, prefix);
  return card;
}

}  // namespace lockstep::run
