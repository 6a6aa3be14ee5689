// Reports a request to stop (base/signals.h) as soon as it arrives, and ends a start-up that cannot end by itself.
//
// Before the first step there is nothing to save, and a rank may be busy for minutes in a library or in the file system
// (it times an algorithm, opens data, waits for MPI). The main threads agree to stop at the next opportunity. If that
// takes too long, the helper thread of the rank that received the signal ends the job. From the first step on, the
// thread only reports the signal: the trainer saves and stops. While it does, the thread answers a second Ctrl-C, and
// ends the job at the third.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "lockstep/communicator.h"

namespace lockstep {

class SignalWatch {
 public:
  /// Catches the signals, and watches for them.
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// The world that is to be ended. Without one, only this process is.
  void set_world(World& world);
  /// Sets the action that the helper thread performs before it ends the job. It returns false if the job has failed:
  /// the signal then comes from the launcher, which ends the other ranks, and is not reported.
  void set_last_action(std::function<bool()> action);
  /// To be called when the first step begins. The helper thread calls `before_loss` when a signal is repeated, since
  /// the job may then be killed before its checkpoint is complete.
  void start_is_over(std::function<void()> before_loss);

 private:
  void watch();
  void watch_start();
  void watch_saving();
  static void attempt(const std::function<void()>& action);
  void end_job();
  void end_without_saving();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false, is_starting_ = true, has_answered_ = false;
  Clock::time_point last_part_;  // when the signal, or the last part of the start-up after it, arrived
  World* world_ = nullptr;
  std::function<bool()> last_action_;
  std::function<void()> before_loss_;
  std::thread thread_;
};

}  // namespace lockstep
