// Predicts what a step will allocate and communicate, without allocating its memory.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/config.h"

namespace lockstep::commands {

/// The plan as text for users and as JSON for programs.
struct PlanReport {
  std::string text;
  nlohmann::ordered_json json;
};

/// The plan for rank 0 of `ranks`, which are placed on `nodes` as by comm::planned_ranks(). `device`: a GPU that need
/// not exist here (make_planning_backend); empty: the device of the configuration. `model`: the file of a cost model,
/// with which times are reported too; empty: none.
PlanReport plan_report(const Config& config, int ranks, int nodes, const std::string& device = "",
                       const std::string& model = "", bool steps = false);

}  // namespace lockstep::commands
