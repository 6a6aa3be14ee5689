// Checks that involve several keys.
#pragma once

#include <map>
#include <string>

#include "lockstep/config.h"

namespace lockstep::config {

/// Where each key was set: "train.yaml:12" or "command line".
using Origins = std::map<std::string, std::string, std::less<>>;

/// Throws Error (config_conflict, config_range, not_supported) with the places where the keys were set.
void check(const Config& config, const Origins& origins);

}  // namespace lockstep::config
