// What a step will hold and move, without taking its memory.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/config.h"

namespace lockstep::commands {

/// The same plan for people and for programs.
struct PlanReport {
  std::string text;
  nlohmann::ordered_json json;
};

/// For rank 0 of `ranks`, in equal blocks on `nodes`.
PlanReport plan_report(const Config& config, int ranks, int nodes);

}  // namespace lockstep::commands
