#include "base/signal_watch.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <exception>
#include <utility>

#include "base/signals.h"
#include "base/standard_streams.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{50};
// Open MPI's mpirun kills the ranks one second after SIGTERM, and needs about as long to end a job that a rank aborts.
constexpr std::chrono::milliseconds kTimeToEnd{400};
// MPI_Init cannot be interrupted, and before it returns, the ranks can neither agree on anything nor write.
constexpr std::chrono::seconds kTimeToStartMpi{5};
// Counts interrupts after the first signal. One more ends a process whose helper thread is stuck.
constexpr int kInterruptThatEnds = 2;
constexpr int kExitInterrupted = 128 + SIGINT;

}  // namespace

SignalWatch::SignalWatch() {
  catch_stop_signals(kInterruptThatEnds + 1);
  const SignalsBlocked blocked;  // inherited by the thread
  thread_ = std::thread([this] { watch(); });
}

SignalWatch::~SignalWatch() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SignalWatch::set_world(World& world) {
  const std::lock_guard lock(mutex_);
  world_ = &world;
  last_part_ = Clock::now();
}

void SignalWatch::set_last_action(std::function<bool()> action) {
  const std::lock_guard lock(mutex_);
  last_action_ = std::move(action);
  last_part_ = Clock::now();
}

void SignalWatch::start_is_over(std::function<void()> before_loss) {
  {
    const std::lock_guard lock(mutex_);
    is_starting_ = false;
    before_loss_ = std::move(before_loss);
  }
  changed_.notify_all();
}

/// Holds the mutex except while it waits, so that the main thread cannot go on while the job is ended.
void SignalWatch::watch() {
  std::unique_lock lock(mutex_);
  const auto wait = [&] { return changed_.wait_for(lock, kBetweenLooks, [this] { return ends_; }); };
  while (!stop_requested())
    if (wait()) return;
  log::info("{} received: {}", stop_signal_name(),
            is_starting_ ? "the start of the run is stopped" : "the run saves and stops after the current step");
  last_part_ = Clock::now();
  do {
    if (is_starting_)
      watch_start();
    else
      watch_saving();
  } while (!wait());
}

void SignalWatch::watch_start() {
  const auto time_left = world_ != nullptr ? Clock::duration(kTimeToEnd) : Clock::duration(kTimeToStartMpi);
  if (n_repeated_interrupts() > 0 || Clock::now() - last_part_ > time_left) end_job();
}

void SignalWatch::watch_saving() {
  if (stop_requested_again() && before_loss_) attempt(std::exchange(before_loss_, nullptr));
  if (n_repeated_interrupts() >= kInterruptThatEnds) end_without_saving();
  if (n_repeated_interrupts() == 0 || std::exchange(has_answered_, true)) return;
  log::info(
      "SIGINT received again: the run finishes its step and writes its checkpoint; another Ctrl-C ends it at once, "
      "and the steps since the newest checkpoint are lost");
}

void SignalWatch::attempt(const std::function<void()>& action) {
  try {
    if (action) action();
  } catch (const std::exception& error) {
    log::warning("{}", error.what());
  }
}

void SignalWatch::end_job() {
  bool is_news = true;
  attempt([&] { is_news = !last_action_ || last_action_(); });
  if (is_news && (world_ == nullptr || world_->is_first_to_report()))
    write_to_standard_error("lockstep: stopped by a signal before the first step: rerun the command to start\n");
  if (world_ == nullptr) ::_exit(kExitStopped);
  world_->abort(kExitStopped);
}

void SignalWatch::end_without_saving() {
  if (world_->is_first_to_report())
    log::warning(
        "ended by Ctrl-C before the checkpoint was complete: rerun the command, which resumes from the one before it, "
        "if "
        "there is one");
  if (world_->size() > 1) world_->abort(kExitInterrupted);
  // Ends as if the signal had not been caught, so that a shell that runs a script also ends the script.
  sigset_t interrupt;
  ::sigemptyset(&interrupt);
  ::sigaddset(&interrupt, SIGINT);
  ::signal(SIGINT, SIG_DFL);
  ::pthread_sigmask(SIG_UNBLOCK, &interrupt, nullptr);
  ::raise(SIGINT);
  ::_exit(kExitInterrupted);
}

}  // namespace lockstep
