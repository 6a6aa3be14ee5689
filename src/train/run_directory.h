// RUN/: what lies where, the outcome for job scripts, and files that appear whole (DESIGN, "A run directory").
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/config.h"

namespace lockstep::train {

class RunDirectory {
 public:
  explicit RunDirectory(const Config& config) : path_(config.run.path()), name_template_(config.checkpoint.name) {}

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  /// "RUN/checkpoints/step-00001200.h5"; {step} and {epoch} of the template are filled in.
  std::string checkpoint(std::int64_t step, std::int64_t epoch) const;

  // Rank 0 only
  void create() const;
  /// Moves an existing run out of the way, to RUN.1, RUN.2, ...; the new name, empty when there was none.
  std::string set_aside() const;
  void write_status(const std::string& status) const;  // running | done | stopped | failed
  void write_file(const std::string& name, const std::string& content) const;
  std::string read_file(const std::string& name) const;  // empty when missing

 private:
  std::string path_, name_template_;
};

}  // namespace lockstep::train
