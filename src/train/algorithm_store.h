// Where the choices of autotuning (lockstep/algorithms.h) are stored. RUN/algorithms.json is for the run itself: when
// resumed, it uses the same algorithms and gets the same bits. ${LOCKSTEP_CACHE:-~/.cache/lockstep}/algorithms.json is
// for other runs. Both store choices per machine (processor, threads, libraries, program and batch):
//   "KEY": "ALGORITHM", or where other programs used the processors while the choice was made,
//   "KEY": {"algorithm": "ALGORITHM", "timed_under_load": true}, or where the time was over before it could be made,
//   "KEY": {"algorithm": "ALGORITHM", "timed": false}
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/algorithms.h"
#include "lockstep/backend.h"
#include "lockstep/communicator.h"
#include "run/run_directory.h"

namespace lockstep::train {

class AlgorithmStore {
 public:
  AlgorithmStore(const run::RunDirectory& run, const DeviceInfo& device, std::int64_t batch);

  /// False with LOCKSTEP_CACHE=none: nothing is timed then, and a layer without a stored choice runs with a fixed
  /// algorithm.
  static bool is_on();

  // Rank 0 only
  /// The choices of the run; those that it lacks come from the cache. A file that cannot be read counts as empty, with
  /// a warning. A run that starts over does not use the choices of the existing run. A choice that was made under load
  /// or was not timed is used by its own run, so that resuming changes no bits; from the cache it is not loaded, so
  /// that it is made again.
  enum class Sources : std::uint8_t { run_and_cache, cache };
  Algorithms load(Sources sources = Sources::run_and_cache) const;
  /// Throws Error (system_call).
  void save_in_run(const Algorithms& algorithms) const;
  /// A cache that cannot be read or written leads only to a warning, once per process.
  void save_in_cache(const Algorithms& algorithms) const;

 private:
  run::RunDirectory run_;
  std::string machine_, cache_;  // cache_ empty: none
};

// Autotuning: rank 0 times the algorithms of each layer (lockstep/algorithms.h), which takes minutes on a device with
// hundreds of plans. Every quarter of a second, the ranks exchange whether a signal asked one of them to stop, so
// that the watchdog also sees rank 0 at work.

/// Collective. On rank 0, `plan` selects the algorithms, and `save` is called every 10 s to
/// store the choices made so far, and at the end. On other ranks neither is called. Throws what `plan` throws, and
/// StoppedBySignal on all ranks if a signal arrives on any of them; the choices made so far are saved.
void autotune(World& world, Algorithms& algorithms, const std::function<void()>& plan,
              const std::function<void()>& save);

}  // namespace lockstep::train
