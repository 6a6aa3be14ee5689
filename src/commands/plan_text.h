// What a step will hold and move, without taking its memory.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/config.h"

namespace lockstep::commands {

/// For rank 0 of `ranks`, all on one node.
std::string plan_text(const Config& config, int ranks);
nlohmann::ordered_json plan_json(const Config& config, int ranks);

}  // namespace lockstep::commands
