// Being told to stop: SIGTERM, SIGUSR2 and SIGINT set a flag, which training looks at once a step.
//
// What launchers make of them: srun passes on what Slurm sends, and waits. Open MPI's mpirun passes SIGUSR2 on and
// waits; given SIGTERM it sends each rank SIGCONT, SIGTERM and SIGKILL, one second apart (4.1;
// OMPI_MCA_odls_base_sigkill_timeout seconds, which every job that fails then lasts longer, twice): ranks have that one
// second to save. scripts/launch turns SIGTERM into SIGUSR2, so that they have all the time they need.
#pragma once

namespace lockstep {

/// From now on. A second SIGINT (Ctrl-C) ends the process at once.
void catch_stop_signals();

/// True once one has come.
bool stop_requested();

}  // namespace lockstep
