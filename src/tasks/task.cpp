#include "tasks/task.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/numbers.h"
#include "lockstep/error.h"
#include "models/family.h"
#include "tasks/language_modelling/model_source.h"
#include "tasks/language_modelling/text_sampler.h"

namespace lockstep::tasks {

namespace {

/// A key that only some tasks use. With another task it would have no effect, which the user would not expect.
struct Row {
  const char* key;
  bool (*is_set)(const Config& config);
};

const Config& defaults() {
  static const Config config;
  return config;
}

// A key's name is the path of its member.
// clang-format off
#define KEY(path) {#path, [](const Config& c) { return c.path != defaults().path; }}
// clang-format on

constexpr Row kOfImages[] = {KEY(model.depth),
                             KEY(model.stem),
                             KEY(model.width),
                             KEY(model.classes),
                             KEY(model.zero_gamma),
                             KEY(data.augment),
                             KEY(data.crop_padding),
                             KEY(data.mean),
                             KEY(data.std),
                             KEY(data.mixup),
                             KEY(data.cutmix),
                             KEY(data.random_erase),
                             KEY(data.color_jitter),
                             KEY(data.validation_size),
                             KEY(data.image_size),
                             KEY(data.balance),
                             KEY(data.validation_resize),
                             KEY(train.label_smoothing),
                             KEY(train.class_weights),
                             KEY(batch_norm.synchronize),
                             KEY(batch_norm.momentum),
                             KEY(batch_norm.epsilon)};
constexpr Row kOfText[] = {KEY(model.from),
                           KEY(model.config),
                           KEY(model.recompute),
                           KEY(model.base_precision),
                           KEY(model.lora.rank),
                           KEY(model.ignore_keys),
                           KEY(model.license),
                           KEY(data.pack),
                           KEY(data.cross_documents),
                           KEY(data.sequence_length),
                           KEY(checkpoint.max_shard_size),
                           KEY(evaluation.generate),
                           KEY(evaluation.generate_tokens),
                           KEY(evaluation.answers),
                           KEY(evaluation.answer_tokens),
                           KEY(evaluation.beams)};

#undef KEY

/// Throws config_conflict if a key that the task of model.family does not use differs from its default.
void check_unused_keys(const Config& config) {
  const bool is_text = models::is_language_model(config.model.family);
  for (const Row& row : is_text ? std::span<const Row>(kOfImages) : std::span<const Row>(kOfText))
    require(!row.is_set(config), ErrorCode::config_conflict,
            "{}{} is for {}, and has no effect with model.family={}: remove it{}", config.places({row.key}), row.key,
            is_text ? "networks that classify images" : "language models", config.model.family,
            is_text ? "" : ", or set model.family=llama");
}

void check_precision(const Config& config) {
  if (config.precision != Precision::fp8) return;
  require(models::is_language_model(config.model.family), ErrorCode::config_conflict,
          "{}precision=fp8 is for language models, and model.family is {}: set precision=bf16 or fp16",
          config.places({"precision", "model.family"}), config.model.family);
  require(config.model.base_precision != "nf4", ErrorCode::config_conflict,
          "{}precision=fp8 and model.base_precision=nf4 round the same matrices: set precision=bf16, or "
          "model.base_precision=same",
          config.places({"precision", "model.base_precision"}));
}

void check_best(const Config& config, const Task& task) {
  const std::string& best = config.checkpoint.best;
  std::string accepted = Config::Checkpoint{}.best;
  for (const Measure& measure : task.evaluation_measures()) accepted += " | " + measure.key;
  const bool is_of_averages = config.ema.is_on() && best.starts_with(kAverageKey);
  if (config.ema.is_on())
    for (const Measure& measure : task.evaluation_measures())
      accepted += fmt::format(" | {}{}", kAverageKey, measure.key);
  require(config.ema.is_on() || !best.starts_with(kAverageKey), ErrorCode::config_conflict,
          "{}checkpoint.best={} is measured with the average of the weights, which needs ema.decay",
          config.places({"checkpoint.best", "ema.decay"}), best);
  const Measure* const found = task.find_measure(is_of_averages ? best.substr(kAverageKey.size()) : best);
  require(best == Config::Checkpoint{}.best || found != nullptr, ErrorCode::config_invalid,
          "{}checkpoint.best: expected one of {}, found \"{}\"{}", config.places({"checkpoint.best"}), accepted, best,
          models::is_language_model(config.model.family) && config.evaluation.answers == 0
              ? "; rouge_l and exact_match need evaluation.answers"
              : "");
}

}  // namespace

const Measure* Task::find_measure(std::string_view key) const {
  const std::span<const Measure> all = evaluation_measures();
  const auto found = std::ranges::find(all, key, &Measure::key);
  return found == all.end() ? nullptr : &*found;
}

std::unique_ptr<TextSampler> Task::make_text_sampler(Precision, Backend&, graph::ParameterTable&) const {
  return nullptr;
}

std::unique_ptr<Task> make_task(const Config& config) {
  const bool is_text = models::family_of(config.model.family).is_language_model;
  check_unused_keys(config);
  check_precision(config);
  std::unique_ptr<Task> task = is_text ? make_language_modelling(config) : make_image_classification(config);
  check_best(config, *task);
  return task;
}

std::unique_ptr<Task> make_resumed_task(const Config& config, const nlohmann::json& model_stamp,
                                        std::vector<std::string>& notes) {
  Config described = config;
  if (std::string note = restore_model_source(described.model, model_stamp); !note.empty())
    notes.push_back(std::move(note));
  return make_task(described);
}

std::string Measure::text(double value, int digits) const { return fixed_text(scale * value, digits) + unit; }

std::string CountUnit::rate_text(double rate, double loss_rate) const {
  return fmt::format("{:.1f} {}{}", rate, rate_unit,
                     counts_part ? fmt::format(" ({:.1f} in the loss)", loss_rate) : "");
}

double mean(double sum, double count) { return count > 0 ? sum / count : 0; }

const Measure& loss_measure() {
  static const Measure loss{.key = "loss",
                            .unit = "",
                            .scale = 1,
                            .step_digits = 4,
                            .epoch_digits = 3,
                            .result_digits = 4,
                            .greater_is_better = false,
                            .of = [](const LossSums& sums) { return mean(sums.loss, sums.weight); }};
  return loss;
}

namespace {

/// The object in the text of a member; null if the text is something else.
template <typename Json>
Json object_in(const Json& stamp, const std::string& key) {
  if (!stamp.contains(key) || !stamp.at(key).is_string()) return nullptr;
  Json value = Json::parse(stamp.at(key).template get<std::string>(), nullptr, /*allow_exceptions=*/false);
  return value.is_object() ? value : Json(nullptr);
}

}  // namespace

std::vector<StampDifference> stamp_differences(const nlohmann::json& before, const nlohmann::ordered_json& now) {
  std::vector<StampDifference> out;
  const auto compare = [&](const std::string& key) {
    const auto text = [&](const auto& stamp) {
      return stamp.contains(key) ? stamp.at(key).dump() : std::string("its default");
    };
    if (text(before) == text(now)) return;
    const auto object_before = object_in(before, key);
    const auto object_now = object_in(now, key);
    if (object_before.is_null() || object_now.is_null()) {
      out.push_back({.key = key, .before = text(before), .now = text(now)});
      return;
    }
    for (StampDifference& difference : stamp_differences(object_before, object_now)) {
      difference.key = key + "." + difference.key;
      out.push_back(std::move(difference));
    }
  };
  for (const auto& [key, value] : now.items()) compare(key);
  for (const auto& [key, value] : before.items())
    if (!now.contains(key)) compare(key);
  return out;
}

}  // namespace lockstep::tasks
