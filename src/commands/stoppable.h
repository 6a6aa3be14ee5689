// Commands that a signal may end at any point, because they write their results under partial names.
#pragma once

#include <functional>

#include "lockstep/communicator.h"

namespace lockstep::commands {

/// Performs the work, which calls throw_if_stopped() between its parts, and returns kExitDone. After a signal, says
/// that nothing was written, and returns kExitStopped.
int stoppable(const std::function<void()>& work);

/// Collective, for ranks that meet while some still work (`mine`): World::any(). Throws StoppedBySignal on all ranks if
/// a signal has asked any of them to stop.
bool any_unless_stopped(World& world, bool mine);

}  // namespace lockstep::commands
