// Where choices by timing (lockstep/algorithms.h) are remembered: RUN/algorithms.json, so that a resumed run takes the
// same ones and gives the same bits; and for other runs ${LOCKSTEP_CACHE:-~/.cache/lockstep}/algorithms.json. Both hold
// choices by machine: processor, threads, libraries, program, batch.
#pragma once

#include <string>

#include "lockstep/algorithms.h"
#include "lockstep/backend.h"
#include "train/run_directory.h"

namespace lockstep::train {

class AlgorithmStore {
 public:
  AlgorithmStore(const RunDirectory& run, const DeviceInfo& device, std::int64_t batch);

  /// False with LOCKSTEP_CACHE=none: nothing is timed then, and what is not remembered runs in a fixed way.
  static bool is_on();

  // Rank 0 only
  /// The run's, and what it lacks from the cache. A file that cannot be read is told, and counts as empty.
  Algorithms::Choices load() const;
  /// Throws Error (system_call).
  void save_in_run(const Algorithms::Choices& choices) const;
  /// A cache that cannot be written is told, no more.
  void save_in_cache(const Algorithms::Choices& choices) const;

 private:
  RunDirectory run_;
  std::string machine_, cache_;  // cache_ empty: none
};

}  // namespace lockstep::train
