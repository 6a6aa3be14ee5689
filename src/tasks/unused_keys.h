// Keys that only some tasks use. With another task they would have no effect, which the user would not expect.
#pragma once

#include "lockstep/config.h"

namespace lockstep::tasks {

/// Throws config_conflict if a key that the task of model.family does not use differs from its default.
void check_unused_keys(const Config& config);

}  // namespace lockstep::tasks
