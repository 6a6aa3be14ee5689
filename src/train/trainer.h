// The training loop, once, for every backend and number of ranks.
#pragma once

#include "train/session.h"

namespace lockstep::train {

/// Trains from session.progress to session.last_step; writes RUN/. Collective. Returns the exit status.
int train(Session& session);

}  // namespace lockstep::train
