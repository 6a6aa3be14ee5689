// Commands that a signal may end at any point, because they write their results under partial names.
#pragma once

#include <functional>

namespace lockstep::commands {

/// Performs the work, which calls throw_if_stopped() between its parts, and returns kExitDone. After a signal, says
/// that nothing was written, and returns kExitStopped.
int stoppable(const std::function<void()>& work);

}  // namespace lockstep::commands
