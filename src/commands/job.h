// How commands run: one process that a signal may end at any point, because it writes its results under partial names;
// or several ranks (base/rank_work.h).
#pragma once

#include <functional>

#include "commands/commands.h"
#include "lockstep/communicator.h"
#include "lockstep/config.h"

namespace lockstep::commands {

/// Performs the work, which calls throw_if_stopped() between its parts, and returns kExitDone. After a signal, says
/// that nothing was written, and returns kExitStopped.
int stoppable(const std::function<void()>& work);

/// Starts MPI and the log of the ranks; the world is current_world().
World& start_ranks(const Arguments& program, const Config& config = {});

}  // namespace lockstep::commands
