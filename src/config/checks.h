// Checks that involve several keys.
#pragma once

#include "lockstep/config.h"

namespace lockstep::config {

/// Throws Error (config_conflict, config_range, not_supported) with the places where the keys were set.
void check(const Config& config);

}  // namespace lockstep::config
