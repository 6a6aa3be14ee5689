#include "base/stop_signal.h"

#include <atomic>
#include <csignal>

#include "lockstep/communicator.h"

namespace lockstep {
namespace {

static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);
std::atomic<int> first_signal{0};
std::atomic<bool> was_interrupted{false};

void note(int signal) {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
  if (signal != SIGINT || !was_interrupted.exchange(true)) return;
  ::signal(SIGINT, SIG_DFL);
  ::raise(SIGINT);  // takes effect when this handler returns
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2, SIGINT}) ::sigaction(signal, &action, nullptr);
  struct sigaction before {};
  if (::sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);
}

bool stop_requested() { return first_signal.load() != 0; }

const char* stop_signal_name() {
  switch (first_signal.load()) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGUSR2:
      return "SIGUSR2";
    case SIGHUP:
      return "SIGHUP";
    default:
      return "no signal";
  }
}

void stop_if_requested(World& world) {
  if (world.any(stop_requested())) throw StoppedBySignal{};
}

}  // namespace lockstep
