#include "train/patience.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace lockstep::train {

void Patience::add(std::int64_t step, double quality) {
  if (limit_ == 0) return;
  if (has_best_ ? quality > best_quality_ : !std::isnan(quality)) {
    has_best_ = true;
    best_quality_ = quality;
    best_step_ = step;
    n_without_improvement_ = 0;
  } else {
    ++n_without_improvement_;
  }
}

std::string Patience::reason() const {
  const std::string which = n_without_improvement_ == 1
                                ? "the last evaluation was"
                                : fmt::format("the last {} evaluations were", n_without_improvement_);
  if (!has_best_) return fmt::format("{} not a number (evaluation.patience)", which);
  return fmt::format("{} not better than that after step {} (evaluation.patience)", which, best_step_);
}

nlohmann::json Patience::state() const {
  if (limit_ == 0) return nullptr;
  return {{"best_quality", has_best_ ? nlohmann::json(best_quality_) : nlohmann::json()},
          {"best_step", best_step_},
          {"evaluations_without_improvement", n_without_improvement_}};
}

void Patience::restore(const nlohmann::json& state) {
  if (!state.is_object() || limit_ == 0) return;
  has_best_ = state.at("best_quality").is_number();
  if (has_best_) best_quality_ = state.at("best_quality").get<double>();
  best_step_ = state.at("best_step").get<std::int64_t>();
  n_without_improvement_ = state.at("evaluations_without_improvement").get<int>();
}

}  // namespace lockstep::train
