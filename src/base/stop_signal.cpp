#include "base/stop_signal.h"

#include <atomic>
#include <csignal>

namespace lockstep {
namespace {

static_assert(std::atomic<bool>::is_always_lock_free);
std::atomic<bool> is_requested{false}, was_interrupted{false};

void note(int signal) {
  is_requested.store(true);
  if (signal != SIGINT || !was_interrupted.exchange(true)) return;
  ::signal(SIGINT, SIG_DFL);
  ::raise(SIGINT);  // takes effect when this handler returns
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGUSR2, SIGINT}) ::sigaction(signal, &action, nullptr);
}

bool stop_requested() { return is_requested.load(); }

}  // namespace lockstep
