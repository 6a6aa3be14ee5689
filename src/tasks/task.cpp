#include "tasks/task.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/number_text.h"
#include "lockstep/error.h"
#include "models/family.h"
#include "tasks/image_classification/task.h"
#include "tasks/language_modelling/model_source.h"
#include "tasks/language_modelling/task.h"
#include "tasks/language_modelling/text_sampler.h"
#include "tasks/unused_keys.h"

namespace lockstep::tasks {
namespace {

void check_best(const Config& config, const Task& task) {
  const std::string& best = config.checkpoint.best;
  std::string accepted = Config::Checkpoint{}.best;
  for (const Measure& measure : task.measures()) accepted += " | " + measure.key;
  const bool is_of_averages = config.ema.is_on() && best.starts_with(kAverageKey);
  if (config.ema.is_on())
    for (const Measure& measure : task.measures()) accepted += fmt::format(" | {}{}", kAverageKey, measure.key);
  require(config.ema.is_on() || !best.starts_with(kAverageKey), ErrorCode::config_conflict,
          "{}checkpoint.best={} is measured with the average of the weights, which needs ema.decay",
          config.places({"checkpoint.best", "ema.decay"}), best);
  const Measure* const found = task.find_measure(is_of_averages ? best.substr(kAverageKey.size()) : best);
  require(best == Config::Checkpoint{}.best || found != nullptr, ErrorCode::config_invalid,
          "{}checkpoint.best: expected one of {}, found \"{}\"", config.places({"checkpoint.best"}), accepted, best);
}

}  // namespace

const Measure* Task::find_measure(std::string_view key) const {
  const auto found = std::ranges::find(measures(), key, &Measure::key);
  return found == measures().end() ? nullptr : &*found;
}

std::unique_ptr<TextSampler> Task::make_text_sampler(Backend&, graph::ParameterTable&) const { return nullptr; }

std::unique_ptr<Task> make_task(const Config& config) {
  const bool is_text = models::family_of(config.model.family).is_language_model;
  check_unused_keys(config);
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

}  // namespace lockstep::tasks
