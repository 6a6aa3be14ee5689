#include "base/signal_handler.h"

#include <array>
#include <csignal>
#include <cstddef>

namespace lockstep {
namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10;  // the registers of AMX alone take 8 KiB

}  // namespace

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
