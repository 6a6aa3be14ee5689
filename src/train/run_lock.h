// One job writes to a run directory at a time. RUN/lock is made with O_EXCL, since file locks reach no other node on
// some cluster file systems, and holds host, process, its start, the Slurm job and a heartbeat that rank 0's helper
// thread renews. A lock is taken over when its process is gone from this host, when it is of this very Slurm job before
// a restart, or when its heartbeat has stood still for a minute, watched by our own clock.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/file.h"
#include "lockstep/communicator.h"

namespace lockstep::train {

class RunLock {
 public:
  struct Timing {
    std::chrono::duration<double> heartbeat{5}, stale{60};
  };
  /// Collective: makes the directory where it is missing, and throws on all ranks, naming the holder (run_locked).
  RunLock(const std::string& directory, World& world) : RunLock(directory, world, Timing{}) {}
  RunLock(const std::string& directory, World& world, const Timing& timing);
  /// Removes the lock, and the directory if nothing was written to it.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Rank 0. Throws where somebody else took it over, which can only be when this job stood still for long.
  void require_held() const;

  static constexpr const char* kFileName = "lock";

 private:
  struct Attempt;
  Attempt try_once();
  bool is_held() const;
  bool take_over(const std::string& seen);
  void beat();

  std::string directory_, path_;
  Timing timing_;
  std::string watched_;  // the lock that may be stale, as it was when first seen so
  std::chrono::steady_clock::time_point watched_since_;

  Descriptor file_;  // null on other ranks
  std::mutex mutex_;
  std::condition_variable end_;
  bool ends_ = false;
  std::thread heartbeat_;
};

}  // namespace lockstep::train
