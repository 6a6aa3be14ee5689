// The training loop, once, for every backend and number of ranks.
#pragma once

#include "train/run_lock.h"
#include "train/session.h"

namespace lockstep::train {

/// Collective. Trains from session.progress to session.last_step and writes to RUN/, for which `lock` is held. Returns
/// the exit status.
int train(Session& session, const RunLock& lock);

}  // namespace lockstep::train
