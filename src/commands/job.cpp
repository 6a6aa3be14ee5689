#include "commands/job.h"

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

}  // namespace lockstep::commands
