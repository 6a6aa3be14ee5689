// Submits the cases of a study to Slurm: one job per case, which starts when the one before it has ended, or with
// --parallel N the N-th before it. The job script is one of jobs/, or the user's own script that sources
// jobs/lib/job.sh.
#pragma once

#include <string>

#include "lockstep/config.h"
#include "scaling/local_runner.h"
#include "scaling/study.h"

namespace lockstep::scaling {

/// The default job script, jobs/scaling.sh, next to the program or in LOCKSTEP_HOME. Throws study_launcher if it is not
/// there.
std::string default_job(const std::string& program);
/// Ranks per node according to the #SBATCH lines of a job script: tasks, or else GPUs; 1 if it sets neither.
int ranks_per_node_in(const std::string& job);

struct SubmitOptions {
  int parallel = 1;           // cases that run at the same time
  bool shares_nodes = false;  // a node may run several jobs at once
  bool waits = false;         // until all jobs have ended
};

/// sbatch of a case. `after`: the jobs that must have ended, with colons between them; empty: none.
Command sbatch_command(const Study& study, const Case& a_case, const Config& config, const std::string& program,
                       const SubmitOptions& options, const std::string& after);

/// Why Slurm would never start this case, for example because its partition has fewer nodes; empty: it would. Throws
/// study_launcher if there is no sbatch.
std::string refusal_of(const Study& study, const Case& a_case, const Config& config, const std::string& program,
                       const SubmitOptions& options);

/// Collects the cases whose jobs have ended, submits those that are neither finished nor queued nor refused, and prints
/// what it did. With `waits`, it then waits for the jobs and collects their cases. Returns the exit status: kExitFailed
/// if it has waited and cases are not finished, kExitStopped after a signal, which leaves the jobs alone. Throws
/// study_launcher if sbatch or squeue is missing or refuses.
int submit(const Study& study, const Config& config, const std::string& program, const SubmitOptions& options);

}  // namespace lockstep::scaling
