// What single values cannot show: keys that must go together.
#pragma once

#include <map>
#include <string>

#include "lockstep/config.h"

namespace lockstep::config {

/// Where each key was given: "train.yaml:12" or "command line".
using Origins = std::map<std::string, std::string, std::less<>>;

/// Throws Error (config_conflict, config_range, not_supported) naming the places of the keys.
void check(const Config& config, const Origins& origins);

}  // namespace lockstep::config
