// Start of MPI, the communication thread, and the choice of a communicator.
#pragma once

#include <memory>
#include <string>

#include "comm/topology.h"
#include "lockstep/communicator.h"
#include "lockstep/config.h"

namespace lockstep::comm {

/// Checks the launch (Slurm's and PMI's variables before MPI_Init, the size after it), starts MPI (SERIALIZED) and the
/// communication thread, which makes all MPI calls from here on. Commands of one process never call it.
/// `watchdog_seconds`: comm.watchdog_seconds.
std::unique_ptr<World> start_world(int* argc, char*** argv, double watchdog_seconds = Config::Comm{}.watchdog_seconds);

/// comm.backend: auto | nccl | staged | shared | mpi; comm.sleep_ms wraps it. Which of them sum, and where their memory
/// is, follows from the backend's memory space. The world must be one of start_world(). `order`: the tree over ranks by
/// which they must sum; empty: the communicator's choice.
std::unique_ptr<Communicator> make_communicator(const Config::Comm& config, World& world, Backend& backend,
                                                const SumOrder& order = {});

/// How the communicator of make_communicator() sums. `space`: the backend's.
Topology topology_of(const Config::Comm& config, World& world, const SumOrder& order = {},
                     MemorySpace space = MemorySpace::host);

/// The NCCL that ranks on GPUs would sum by: its version and place, or in a sentence why there is none.
std::string describe_nccl();

/// A world of one rank without MPI, and its communicator (sums of one are no work): tests and single-process commands.
std::unique_ptr<World> single_world();

}  // namespace lockstep::comm
