// Only one job at a time writes to a run directory. RUN/lock is created with O_EXCL, since file locks do not reach
// other nodes on some cluster file systems. It holds the host, the process and its start time, the Slurm job, and a
// heartbeat that a helper thread of rank 0 renews. A lock is taken over when its process no longer exists on this host,
// when it belongs to this Slurm job before a restart, or when its heartbeat has not changed for a minute by our own
// clock.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/file.h"
#include "lockstep/communicator.h"

namespace lockstep::run {

class RunLock {
 public:
  struct Timing {
    std::chrono::duration<double> heartbeat{5}, stale{60};
  };
  /// Collective: creates the directory if it is missing. If another job holds the lock, throws run_locked on all ranks,
  /// naming the holder. Throws StoppedBySignal if a signal arrives on any rank while it waits.
  RunLock(const std::string& directory, World& world) : RunLock(directory, world, Timing{}) {}
  RunLock(const std::string& directory, World& world, const Timing& timing);
  ~RunLock() { release(); }
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Removes the lock, and the directory if it is empty. May be called again.
  void release();

  /// Takes no lock and does not wait. Throws run_locked if a process on this host surely holds the lock.
  static void require_free(const std::string& directory);

  /// "process 12 on a, since ...", if that holds the lock but surely no longer exists; otherwise empty.
  static std::string lost_holder(const std::string& directory);

  /// Rank 0. Throws if another job took the lock over, which happens only if this job was suspended for long.
  void require_held() const;

  static constexpr const char* kFileName = "lock";

 private:
  std::string try_once();
  bool is_held() const;
  void write_lock();
  bool take_over(const std::string& seen);
  void beat();

  std::string directory_, path_;
  Timing timing_;
  std::string watched_;  // a lock that may be stale, as it was when first seen
  std::chrono::steady_clock::time_point watched_since_;

  Descriptor file_;  // null on other ranks
  std::mutex mutex_;
  std::condition_variable end_;
  bool ends_ = false;
  std::thread heartbeat_;
};

}  // namespace lockstep::run
