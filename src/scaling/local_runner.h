// Runs the cases of a study with mpirun on this machine, one after the other, and measures what other programs do
// meanwhile.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/config.h"
#include "scaling/study.h"

namespace lockstep::scaling {

// ---- Starting other programs: the launcher of a case, sbatch and squeue ---------------------------------------------

struct Command {
  std::vector<std::string> words;                                  // the first is looked up on PATH
  std::string directory{};                                         // working directory; empty: that of this process
  std::vector<std::pair<std::string, std::string>> environment{};  // added to that of this process
};

/// The command as a shell would need it, with quotes where they are necessary.
std::string text_of(const Command& command);

struct Ended {
  int status = 0;            // 128 + the number of the signal that ended it
  bool was_stopped = false;  // by `must_stop`
  double seconds = 0;
};

/// Runs the program in a session of its own, with standard output and error in `output`, which is replaced. It ends
/// when this process ends, however that happens. When must_stop() becomes true, it gets SIGTERM, and ten seconds later
/// everything in its process group is killed. Throws study_launcher if there is no such program.
Ended run(const Command& command, const std::string& output, const std::function<bool()>& must_stop);

/// Prints a line at once.
void print(const std::string& line);

struct Captured {
  int status = 0;
  std::string output, errors;
};
/// Runs the program and returns what it prints. Throws study_launcher if there is no such program.
Captured capture(const Command& command);

/// The time that all programs of this machine have used its cores so far, in seconds; kUnknown if it cannot be read.
double busy_core_seconds();
/// The cores that others kept busy between two readings, when this process and its children used `own_seconds`.
double busy_cores_of_others(double before, double after, double own_seconds, double elapsed_seconds);
/// The processor time of this process and of the children that it has waited for.
double own_core_seconds();
/// Identifies the machine: it is the same in all containers. Empty if it cannot be read.
std::string machine_id();

// ---- Running the cases with mpirun ----------------------------------------------------------------------------------

/// mpirun of a case: that of LOCKSTEP_MPIRUN, or `mpirun --bind-to none`, with --oversubscribe if there are fewer cores
/// than ranks. `program`: the path of lockstep.
Command local_command(const Study& study, const Case& a_case, const std::string& program);

/// Runs all cases that are not finished. Prints a line per case. Returns the exit status: kExitStopped after a signal,
/// kExitFailed if a case has failed.
int run_locally(const Study& study, const Config& config, const std::string& program);

}  // namespace lockstep::scaling
