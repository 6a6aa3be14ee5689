#include "commands/stoppable.h"

#include "base/stop_signal.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::commands {

int stoppable(const std::function<void()>& work) {
  catch_stop_signals();
  stop_anywhere();
  try {
    work();
    return kExitDone;
  } catch (const StoppedBySignal&) {
    log::info("stopped by {}: nothing was written", stop_signal_name());
    return kExitStopped;
  }
}

}  // namespace lockstep::commands
