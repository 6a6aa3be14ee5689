#include "base/signals.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <iterator>
#include <utility>

#include "lockstep/communicator.h"

namespace lockstep {

namespace {

static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);
std::atomic<int> first_signal{0};
std::atomic<bool> was_repeated{false}, may_stop_anywhere{false};
std::atomic<int> n_interrupts{0}, n_last_interrupt{1};  // further SIGINTs; the number that ends the process

constexpr std::size_t kStackBytes = std::size_t{64} << 10;  // the registers of AMX alone take 8 KiB

void note(int signal) {
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal)) return;
  if (signal == SIGINT || signal == SIGTERM) was_repeated = true;
  if (signal != SIGINT || ++n_interrupts < n_last_interrupt) return;
  ::signal(SIGINT, SIG_DFL);
  ::raise(SIGINT);  // takes effect when this handler returns
}

}  // namespace

void catch_stop_signals(int last_repeated_interrupt) {
  n_last_interrupt = last_repeated_interrupt;
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2, SIGINT}) handle_signal(signal, note, SA_RESTART);
  struct sigaction before {};
  if (::sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
    handle_signal(SIGHUP, note, SA_RESTART);
}

bool stop_requested() { return first_signal.load() != 0; }
int n_repeated_interrupts() { return n_interrupts.load(); }
bool stop_requested_again() { return was_repeated.load(); }

const char* stop_signal_name() {
  constexpr std::pair<int, const char*> kNames[] = {
      {SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}, {SIGHUP, "SIGHUP"}};
  const auto* found = std::ranges::find(kNames, first_signal.load(), &std::pair<int, const char*>::first);
  return found == std::end(kNames) ? "no signal" : found->second;
}

void stop_anywhere() { may_stop_anywhere = true; }

void throw_if_stopped() {
  if (may_stop_anywhere.load() && stop_requested()) throw StoppedBySignal{};
}

void stop_if_requested(World& world) {
  if (world.any(stop_requested())) throw StoppedBySignal{};
}

void handle_signal(int signal, void (*handler)(int), int flags) {
  alignas(64) static std::array<std::byte, kStackBytes> memory;
  stack_t stack{};
  stack.ss_sp = memory.data();
  stack.ss_size = memory.size();
  ::sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags | SA_ONSTACK;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace lockstep
