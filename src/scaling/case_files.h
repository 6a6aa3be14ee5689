// DIR/cases/NAME: the files of one case.
//
//   config.yaml      its configuration, written before each attempt
//   run/             the run directory of the training
//   output.txt       what the launcher and the ranks printed
//   job.txt          slurm: the id of its job
//   hosts.txt        slurm: what jobs/lib/job.sh has found on the nodes before it started the ranks
//   finished.json    the measurement. It appears when the case is finished, and such a case is never started again.
//   attempt-1/ ...   the files of attempts that have failed or were interrupted, without their weights
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/config.h"
#include "scaling/measurement.h"
#include "scaling/study.h"

namespace lockstep::scaling {

class CaseFiles {
 public:
  CaseFiles(const Study& study, const Case& a_case) : directory_(study.directory_of(a_case)) {}

  const std::string& directory() const { return directory_; }
  std::string file(const std::string& name) const { return directory_ + "/" + name; }
  std::string run() const { return file("run"); }
  std::string output() const { return file("output.txt"); }
  std::string finished() const { return file("finished.json"); }

  bool is_finished() const;
  bool has_begun() const;  // there are files of an attempt that is not finished
  /// RUN/status; empty if there is none.
  std::string status() const;
  /// Empty if no job was submitted.
  std::string job() const;
  /// The error of the program in output.txt with its remedy, or else the last lines.
  std::string reason_in_output() const;
  /// Throws study_damaged if finished.json cannot be read; empty if the case is not finished.
  std::optional<Measurement> measurement() const;
  /// The measurement of a run that is done, from its files and hosts.txt; empty if it is not done. Throws study_damaged
  /// if the files are not complete.
  std::optional<Measurement> measurement_of_run(const Study& study) const;

  /// Moves the files of an earlier attempt, except its weights, to attempt-N, and writes config.yaml. Throws run_locked
  /// if a process of that attempt is still there.
  void prepare(const Config& config) const;
  void write_job(const std::string& id) const;
  /// Removes the weights, since a study measures only speed, and writes finished.json.
  void finish(const Measurement& measurement) const;

 private:
  void remove_weights() const;
  void add_hosts(Measurement& measurement) const;
  std::string directory_;
};

// ---- Which cases a study has, in which order they run, and the configuration of each --------------------------------

struct Size {
  int ranks = 1, nodes = 1;
};

/// Parses "1,2,4,8" to numbers in ascending order. Throws usage, naming `option`, for anything else. `if_twice`: the
/// remedy if a number occurs twice.
std::vector<int> sizes_in(const std::string& text, const std::string& option,
                          const std::string& if_twice = "give each number once");
/// One size per number. `are_nodes`: each with `ranks_per_node` ranks. Otherwise they are ranks, on one node or, if
/// ranks_per_node is not 0, on as few nodes as they need; throws usage if they do not fill these nodes.
std::vector<Size> sizes_of(const std::vector<int>& numbers, bool are_nodes, int ranks_per_node);

/// Each size once per repeat. The repeats follow each other, and the order within each is shuffled. A drift of the
/// machine then affects all sizes alike, and an interrupted study has about the same number of repeats of each size.
std::vector<Case> make_cases(const std::vector<Size>& sizes, int repeats, std::uint64_t seed);

/// What the configuration says: strong if train.global_batch is in effect, weak if train.batch_per_rank is.
Scaling scaling_of(const Config& config);
/// Study::batch for the smallest size, which trains what the configuration says. Throws usage if the batch is not a
/// number or cannot be divided.
std::int64_t batch_of(const Config& config, Scaling scaling, int fewest_ranks);

/// The configuration of a case: its batch and its directory, `study.steps` steps without evaluation, or `study.epochs`
/// epochs with it; all steps are logged, the memory every half second; no checkpoint before the end. Throws if it is
/// not possible (config_*, usage).
Config configuration_of(const Study& study, const Case& a_case, Config config);

}  // namespace lockstep::scaling
