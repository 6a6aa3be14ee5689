// How this process was launched, according to the environment, before MPI_Init is called. Without PMI, Open MPI 4.1
// exits inside MPI_Init, and other MPI libraries start N worlds of one rank each (DESIGN, decision 11).
#pragma once

#include <string>

#include "lockstep/communicator.h"

namespace lockstep::comm {

struct Launch {
  bool alone = true;      // only one process: MPI is not needed
  int expected_size = 0;  // number of ranks according to the launcher; 0: unknown
  std::string launcher;   // "mpirun" or "srun", for messages
};

/// Reads the variables of Slurm, PMI, PMIx and Open MPI.
/// Throws comm_launch if this is one of several tasks of a Slurm step that have no common MPI world.
Launch inspect_launch();

/// For a single-process command. Throws usage if a launcher started several processes, since each would do the same
/// work and write the same files. `command`: "predict".
void require_one_process(const std::string& command);

/// Called after MPI_Init. Throws comm_launch if the size of the world contradicts the launcher.
void check_world_size(const Launch& launch, int size);

/// Collective. Throws nodes_differ on all ranks if a rank's build (version, commit, compiler) differs from that of rank
/// 0.
void check_builds_agree(World& world, const std::string& mine);

}  // namespace lockstep::comm
