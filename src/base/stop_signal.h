// Requests to stop: SIGTERM, SIGUSR2 and SIGINT set a flag, which training checks once per step.
//
// What launchers do with them: srun forwards what Slurm sends and waits. Open MPI's mpirun forwards SIGUSR2 and waits;
// on SIGTERM, it sends SIGCONT, SIGTERM and SIGKILL to each rank, one second apart, so the ranks have one second to
// save. (OMPI_MCA_odls_base_sigkill_timeout of version 4.1 sets another number of seconds, but every job that fails
// then takes twice that time longer.) scripts/launch turns SIGTERM into SIGUSR2, so that ranks have the time they need.
#pragma once

namespace lockstep {

/// Catches these signals from now on. A second SIGINT (Ctrl-C) ends the process immediately.
void catch_stop_signals();

/// Whether one has arrived.
bool stop_requested();

}  // namespace lockstep
