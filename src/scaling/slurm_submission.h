// Submits the cases of a study to Slurm: one job per case, each of which starts when the one before it has ended. The
// job script is one of jobs/, or the user's own script that sources jobs/lib/job.sh.
#pragma once

#include <string>

#include "lockstep/config.h"
#include "scaling/process.h"
#include "scaling/study.h"

namespace lockstep::scaling {

/// The default job script, jobs/scaling.sh, next to the program or in LOCKSTEP_HOME. Throws study_launcher if it is not
/// there.
std::string default_job(const std::string& program);
/// Ranks per node according to the #SBATCH lines of a job script: tasks, or else GPUs; 1 if it sets neither.
int ranks_per_node_in(const std::string& job);

/// sbatch of a case. `after`: the job that must have ended; empty: none.
Command sbatch_command(const Study& study, const Case& a_case, const Config& config, const std::string& program,
                       const std::string& after);

/// Collects the cases whose jobs have ended, submits those that are neither finished nor queued, and prints what it
/// did. Throws study_launcher if sbatch or squeue is missing or refuses.
int submit(const Study& study, const Config& config, const std::string& program);

}  // namespace lockstep::scaling
