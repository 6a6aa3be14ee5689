#include "train/stop_watch.h"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <utility>

#include "base/signals_blocked.h"
#include "base/standard_streams.h"
#include "base/stop_signal.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::train {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{50};
// Open MPI's mpirun kills the ranks one second after SIGTERM, and needs about as long to end a job that a rank aborts.
constexpr std::chrono::milliseconds kTimeToEnd{400};
// MPI_Init cannot be interrupted, and before it nothing can be agreed or written.
constexpr std::chrono::seconds kTimeToStartMpi{5};

}  // namespace

StopWatch::StopWatch() {
  const SignalsBlocked blocked;  // inherited by the thread
  thread_ = std::thread([this] { watch(); });
}

StopWatch::~StopWatch() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StopWatch::set_world(World& world) {
  const std::lock_guard lock(mutex_);
  world_ = &world;
  last_part_ = Clock::now();
}

void StopWatch::set_last_action(std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  last_action_ = std::move(action);
  last_part_ = Clock::now();
}

void StopWatch::start_is_over() {
  {
    const std::lock_guard lock(mutex_);
    is_starting_ = false;
  }
  changed_.notify_all();
}

void StopWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_requested()) {
    if (changed_.wait_for(lock, kBetweenLooks, [this] { return ends_; })) return;
  }
  log::info("{} received: {}", stop_signal_name(),
            is_starting_ ? "the start of the run is stopped" : "the run saves and stops after the current step");
  last_part_ = Clock::now();
  while (!ends_ && is_starting_) {
    if (Clock::now() - last_part_ > (world_ != nullptr ? kTimeToEnd : kTimeToStartMpi)) return end_job();
    changed_.wait_for(lock, kBetweenLooks);
  }
}

/// Keeps the mutex, so that the main thread cannot go on in between.
void StopWatch::end_job() {
  try {
    if (last_action_) last_action_();
  } catch (const std::exception& error) {
    log::warning("{}", error.what());
  }
  if (world_ == nullptr || world_->is_first_to_report())
    write_to_standard_error("lockstep: stopped by a signal before the first step: rerun the command to start\n");
  if (world_ == nullptr) ::_exit(kExitStopped);
  world_->abort(kExitStopped);
}

}  // namespace lockstep::train
