// precision: auto. Each device proposes a precision for the kind of model (Backend::automatic_precision), and all ranks
// compute in the one that every device can use.
#pragma once

#include <string>

#include "lockstep/backend.h"
#include "lockstep/config.h"

namespace lockstep {
class World;
}

namespace lockstep::train {

/// Replaces `precision: auto`, and returns why: " (auto: matrix products, AVX-512 with bf16)". Changes nothing and
/// returns an empty text if the precision was given. The environment variable LOCKSTEP_AUTO_PRECISION overrides what
/// the devices propose. Collective. Throws config_invalid if it is no precision.
std::string resolve_precision(Config& config, const Backend& backend, World& world);

}  // namespace lockstep::train
