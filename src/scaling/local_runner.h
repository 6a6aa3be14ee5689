// Runs the cases of a study with mpirun on this machine, one after the other, and measures what other programs do
// meanwhile.
#pragma once

#include <string>

#include "lockstep/config.h"
#include "scaling/process.h"
#include "scaling/study.h"

namespace lockstep::scaling {

/// mpirun of a case: that of LOCKSTEP_MPIRUN, or `mpirun --bind-to none`, with --oversubscribe if there are fewer cores
/// than ranks. `program`: the path of lockstep.
Command local_command(const Study& study, const Case& a_case, const std::string& program);

/// Runs all cases that are not finished. Prints a line per case. Returns the exit status: kExitStopped after a signal,
/// kExitFailed if a case has failed.
int run_locally(const Study& study, const Config& config, const std::string& program);

}  // namespace lockstep::scaling
