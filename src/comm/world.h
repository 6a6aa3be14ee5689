// Starts MPI and the communication thread, and chooses a communicator.
#pragma once

#include <memory>
#include <string>

#include "comm/topology.h"
#include "lockstep/communicator.h"
#include "lockstep/config.h"

namespace lockstep::comm {

/// Checks how the process was launched: the variables of Slurm and PMI before MPI_Init, and the size of the world after
/// it. Starts the communication thread, which initializes MPI (MPI_THREAD_SERIALIZED) and makes all MPI calls. Commands
/// that run in one process do not call this. `watchdog_seconds`: comm.watchdog_seconds.
std::unique_ptr<World> start_world(int* argc, char*** argv, double watchdog_seconds = Config::Comm{}.watchdog_seconds);

/// comm.backend: auto | nccl | staged | shared | mpi; comm.sleep_ms adds a delay to it. `auto` depends on the memory
/// space of the backend. The world must come from start_world() or single_world(). `order`: the tree order over ranks
/// in which to sum; empty: the communicator chooses one. `log_folder`: where NCCL's log of each rank is kept (RUN);
/// empty: nowhere.
std::unique_ptr<Communicator> make_communicator(const Config::Comm& config, World& world, Backend& backend,
                                                const SumOrder& order = {}, const std::string& log_folder = "");

/// The topology that make_communicator() would use. `space`: the memory space of the backend.
Topology topology_of(const Config::Comm& config, World& world, const SumOrder& order = {},
                     MemorySpace space = MemorySpace::host);

/// The version and path of the NCCL library that ranks on GPUs would use, or a sentence that says why there is none.
std::string describe_nccl();

/// A world of one rank without MPI, for commands that run in one process, and for tests. Sums over one rank need no
/// work.
std::unique_ptr<World> single_world();

}  // namespace lockstep::comm
