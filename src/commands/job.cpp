#include "commands/job.h"

#include <algorithm>
#include <string>

#include "base/failure.h"
#include "base/signals.h"
#include "comm/world.h"
#include "hdf5/reader.h"
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

World& start_ranks(const Arguments& program, const Config& config) {
  hdf5::version();  // HDF5 starts before MPI: otherwise a parallel build of HDF5 would make MPI calls of its own
  World& world = *(current_world() = comm::start_world(program.argc, program.argv, config.comm.watchdog_seconds));
  log::configure(world.rank(), world.size(), world.host(), config.log.all_ranks);
  return world;
}

Part part_of(const World& world, std::size_t n) {
  const auto n_ranks = static_cast<std::size_t>(world.size()), rank = static_cast<std::size_t>(world.rank());
  return {.begin = n * rank / n_ranks, .end = n * (rank + 1) / n_ranks};
}

void Meetings::after_step() {
  constexpr int kStepsBetweenMeetings = 8;
  if (world_.size() == 1 || ++n_steps_ % kStepsBetweenMeetings == 0) meet(true);
}

void Meetings::end() {
  while (world_.size() > 1 && meet(false)) {
  }
}

bool Meetings::meet(bool works) {
  const std::vector<std::string> all = world_.all_gather(stop_requested() ? "stop" : works ? "true" : "false");
  if (std::ranges::find(all, "stop") != all.end()) throw StoppedBySignal{};
  return std::ranges::find(all, "true") != all.end();
}

}  // namespace lockstep::commands
