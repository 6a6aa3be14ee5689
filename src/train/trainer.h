// The training loop, once, for every backend and number of ranks.
#pragma once

#include "train/run_lock.h"
#include "train/session.h"

namespace lockstep::train {

/// Trains from session.progress to session.last_step; writes RUN/, which `lock` must hold. Collective. Returns the exit
/// status.
int train(Session& session, const RunLock& lock);

}  // namespace lockstep::train
