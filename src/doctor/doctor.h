// `lockstep doctor`: examines the ranks of a job, what connects them, and the file systems that they use. All ranks
// measure and send their results to each other; pure functions then turn them into checks, so every rank has the same
// report.
#pragma once

#include <string>

#include "doctor/check.h"
#include "doctor/links.h"
#include "lockstep/backend.h"
#include "lockstep/communicator.h"

namespace lockstep::doctor {

struct Options {
  Effort effort = Effort::full;
  std::string run_folder{}, data_folder{};  // empty: not examined
  bool examines_links = true;               // what ranks exchange
};

/// Collective. `backend`: not frozen; null if it could not be made, with the reason in `problem`. Throws Error if a
/// rank is lost. What a rank cannot measure counts as a failed check.
Report examine(World& world, Backend* backend, const std::string& problem, const Options& options);

}  // namespace lockstep::doctor
