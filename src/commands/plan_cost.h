// How long the planned training takes, according to the cost model that a scaling study has fitted
// (scaling/cost_model.h).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "scaling/cost_model.h"

namespace lockstep::commands {

struct PlannedCost {
  scaling::Prediction prediction{};  // of a step
  std::string machines{};            // "each node has 8 cores, as in the study"
  std::int64_t steps_per_epoch = 0, steps = 0;
  double efficiency = 0;  // samples per second and rank, relative to the smallest size of the study
  int baseline_ranks = 1;
  double error = 0;           // of the model, where it was fitted; a part of 1
  bool knows_network = true;  // false: several nodes are planned, and the study had cases on one node only

  double epoch_seconds() const { return prediction.step_seconds() * static_cast<double>(steps_per_epoch); }
  double seconds() const { return prediction.step_seconds() * static_cast<double>(steps); }
  double node_hours() const { return prediction.size.nodes * seconds() / 3600; }
};

/// `exchanged`: what a step of this plan exchanges; its model may differ from that of the study. Throws study_damaged
/// if `path` is not a cost model.
PlannedCost planned_cost(const std::string& path, int ranks, int nodes, std::int64_t global_batch,
                         const scaling::Exchanged& exchanged);

std::string text_of(const PlannedCost& cost);
nlohmann::ordered_json json_of(const PlannedCost& cost);

}  // namespace lockstep::commands
