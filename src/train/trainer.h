// The training loop, once, for every backend and number of ranks.
#pragma once

#include <optional>

#include "run/data_watch.h"
#include "run/run_lock.h"
#include "train/session.h"

namespace lockstep::train {

struct Outcome {
  int status = 0;                            // the exit status
  std::optional<run::SlowRank> slow_rank{};  // the others waited for it; the same on all ranks
};

/// Collective. Trains from session.progress to session.last_step and writes to RUN/, for which `lock` is held.
Outcome train(Session& session, const run::RunLock& lock);

}  // namespace lockstep::train
