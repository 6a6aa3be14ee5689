#include "commands/stoppable.h"

#include <algorithm>
#include <string>
#include <vector>

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

bool any_unless_stopped(World& world, bool mine) {
  const std::vector<std::string> all = world.all_gather(stop_requested() ? "stop" : mine ? "true" : "false");
  if (std::ranges::find(all, "stop") != all.end()) throw StoppedBySignal{};
  return std::ranges::find(all, "true") != all.end();
}

}  // namespace lockstep::commands
