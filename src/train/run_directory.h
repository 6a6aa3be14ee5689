// RUN/: what lies where, the outcome for job scripts, and files that appear whole (DESIGN, "A run directory").
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/communicator.h"
#include "lockstep/config.h"

namespace lockstep::train {

class RunDirectory {
 public:
  explicit RunDirectory(const Config& config);

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  /// "RUN/checkpoints/step-00001200.h5", of the template checkpoint.name. One name for each step: without {step}, what
  /// is saved inside an epoch has its step behind the name.
  std::string checkpoint(std::int64_t step, std::int64_t steps_per_epoch) const;

  // Rank 0 only
  void create() const;
  /// Collective, once it was made: throws run_not_shared on all ranks where a node does not see what rank 0 wrote.
  void check_is_shared(World& world) const;
  /// Moves an existing run out of the way, to RUN.1, RUN.2, ..., but for the lock that this job holds; the new name,
  /// empty when there was none.
  std::string set_aside() const;
  void write_status(const std::string& status) const;  // running | done | stopped; any rank: failed
  void write_file(const std::string& name, const std::string& content) const;
  std::string read_file(const std::string& name) const;  // empty when missing

 private:
  std::string path_, name_template_;  // of a checkpoint, all but {step} and {epoch} filled in
};

}  // namespace lockstep::train
