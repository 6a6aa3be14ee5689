// A scaling study: the same training on several numbers of ranks, each repeated. DIR/config.yaml is written once, and
// DIR/study.json changes only when sizes are added; each case has a directory of its own (case_files.h). results.h has
// the figures of a study, which all formats of the report show.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/config.h"

namespace lockstep::scaling {

/// strong: the global batch is the same in all cases. weak: the batch per rank is.
enum class Scaling : std::uint8_t { strong, weak };
/// local: mpirun on this machine, one case after the other. slurm: one job per case, each after the previous one.
enum class Launcher : std::uint8_t { local, slurm };
std::string text_of(Scaling scaling);
std::string text_of(Launcher launcher);

struct Case {
  std::string name{};  // "ranks-0004-repeat-2", the directory in DIR/cases
  int ranks = 1, nodes = 1, repeat = 1;
  int ranks_per_node() const { return ranks / nodes; }
};

/// The minimum number of steps after the warm-up. The report rejects a case with fewer.
inline constexpr std::int64_t kLeastMeasuredSteps = 5;

struct Study {
  std::string directory{};          // absolute
  std::string working_directory{};  // in which the cases are started: paths of the configuration are relative to it
  Scaling scaling = Scaling::strong;
  Launcher launcher = Launcher::local;
  std::int64_t batch = 0;         // samples; strong: the global batch, weak: the batch per rank
  std::int64_t steps = 0;         // of a case, with its warm-up; 0: a case has whole epochs, and is timed as a whole
  std::int64_t warmup_steps = 0;  // that are not measured
  int epochs = 0, repeats = 1;    // epochs: of a case without a number of steps; 0: its runs have finished already
  std::uint64_t seed = 1;         // of the order
  std::string job{};              // slurm: the job script
  std::string build{};            // of the program that began the study: build_text()
  std::vector<Case> cases{};      // in the order in which they run

  std::string file() const { return directory + "/study.json"; }
  std::string configuration_file() const { return directory + "/config.yaml"; }
  std::string directory_of(const Case& a_case) const { return directory + "/cases/" + a_case.name; }
};

/// "0.1.0 (1d7fb48), g++ 12.2.0, libraries 5f0c2a91": of the object that `lockstep --version --json` prints. The last
/// word is a hash of the versions of all libraries. Empty if the text is not such an object.
std::string build_text(const std::string& versions_json);

/// The settings of all cases, as in DIR/study.json and in the report for programs.
nlohmann::ordered_json settings_json(const Study& study);

/// Whether DIR/study.json exists.
bool study_exists(const std::string& directory);
/// Throws usage if there is no study, and study_damaged if it cannot be read.
Study read_study(const std::string& directory);
/// Creates the directory, DIR/config.yaml and DIR/study.json, which appears last and as a whole.
void write_study(const Study& study, const Config& config);

/// Replaces DIR/study.json, after cases were added.
void write_cases(const Study& study);
/// Adds the cases of `now` that the study does not have, after its own. Returns how many these are.
std::size_t extend(Study& study, const Study& now);

/// Throws resume_changed with all differences if the command line no longer describes the study in `before`. It may
/// have additional sizes.
void require_unchanged(const Study& before, const Study& now, const Config& config);

/// Only one `lockstep scaling run` works on a study at a time. DIR/lock names the host and the process. The lock of a
/// process of this host that is gone is taken over; that of another host must be removed by hand, since nothing tells
/// whether its process is still there.
class StudyLock {
 public:
  /// Throws run_locked if another process holds it. The directory must exist.
  explicit StudyLock(const std::string& directory);
  ~StudyLock();
  StudyLock(const StudyLock&) = delete;
  StudyLock& operator=(const StudyLock&) = delete;

 private:
  bool try_once();
  void remove_left();

  std::string path_, content_;
};

}  // namespace lockstep::scaling
