// RUN/: the names of its files, the outcome for job scripts, and files that appear complete or not at all.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/communicator.h"
#include "lockstep/config.h"

namespace lockstep::run {

class RunDirectory {
 public:
  explicit RunDirectory(const Config& config);
  /// For {model} in checkpoint.name; before checkpoint().
  void set_model_name(const std::string& file_name);

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  /// "RUN/checkpoints/step-00001200.h5", from the template checkpoint.name. Each step has a name of its own: if the
  /// template has no {step}, a checkpoint inside an epoch gets its step appended.
  std::string checkpoint(std::int64_t step, std::int64_t steps_per_epoch) const;

  // Rank 0 only
  void create() const;
  /// Without creating anything: throws run_directory if create() could not succeed.
  void check_can_be_created() const;
  /// Throws run_directory if there is a folder, a pipe or a device in place of a file of the run.
  void check_files() const;
  /// Throws run_directory if the directory of a run that has begun is gone, or was emptied. If only its status is gone,
  /// it is written again.
  void require_present() const;
  /// Collective, after create(): throws nodes_differ on all ranks if a node does not see what rank 0 wrote.
  void check_is_shared(World& world) const;
  /// Moves an existing run, without the lock that this job holds, to RUN.1, RUN.2, ... If RUN is a symbolic link, it
  /// stays, and the directory that it names is moved. Returns the new name; empty if there was no run.
  std::string set_aside() const;
  /// running | done | stopped; any rank: failed. On a full disk, the file is overwritten in place.
  void write_status(const std::string& status) const;
  /// Replaces the status only if it is still `before`. May be called from any thread and any rank.
  bool replace_status(const std::string& before, const std::string& status) const;
  void write_file(const std::string& name, const std::string& content) const;
  std::string read_file(const std::string& name) const;  // empty when missing

 private:
  void set_status(const std::string& status) const;

  std::string path_, name_template_;  // of a checkpoint; only {step} and {epoch} are still to be filled in
};

/// The answers of an evaluation to conversations (tasks/language_modelling/answers.h): RUN/answers/step-00001200.jsonl,
/// and ema-step-00001200.jsonl of the averages of the weights.
std::string answers_path(const std::string& run, std::int64_t step, bool is_of_averages);

}  // namespace lockstep::run
