// How this process was launched, told by the environment before MPI_Init: Open MPI 4.1 ends inside it when srun gave
// no PMI, and other libraries then make N worlds of one (DESIGN, decision 11).
#pragma once

#include <string>

#include "lockstep/communicator.h"

namespace lockstep::comm {

struct Launch {
  bool alone = true;      // one process: MPI is not started
  int expected_size = 0;  // ranks that the launcher says there are; 0: it does not say
  std::string launcher;   // for messages: "mpirun", "srun"
};

/// Reads the variables of Slurm, PMI, PMIx and Open MPI.
/// Throws comm_launch for a Slurm step of several tasks that were not given a common MPI world.
Launch inspect_launch();

/// After MPI_Init: throws comm_launch when the size of the world contradicts the launcher.
void check_world_size(const Launch& launch, int size);

/// Collective: throws comm_builds, on all ranks, where a rank's build (version, commit, compiler) is not rank 0's.
void check_builds_agree(World& world, const std::string& mine);

}  // namespace lockstep::comm
