// Signal handlers must not touch the stack of the thread that they interrupt.
#include "base/signals.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

namespace lockstep {
namespace {

volatile std::sig_atomic_t n_calls = 0;

void count(int) { n_calls = n_calls + 1; }

/// Writes below the frame of this function, as kernels do, sends the signal, and returns how many bytes have changed.
/// The bytes directly below the frame are left out: functions that are called here use them.
[[gnu::noinline]] int changed_below_the_stack(long process, long thread, int signal) {
  constexpr int kBegin = -16384, kEnd = -640;
  auto* const frame = static_cast<volatile unsigned char*>(__builtin_frame_address(0));
  for (int i = kBegin; i < kEnd; ++i) frame[i] = static_cast<unsigned char>(i * 7);
  ::syscall(SYS_tgkill, process, thread, signal);
  int n_changed = 0;
  for (int i = kBegin; i < kEnd; ++i) n_changed += frame[i] != static_cast<unsigned char>(i * 7);
  return n_changed;
}

TEST(SignalHandler, LeavesTheInterruptedStackAlone) {
  const long process = ::getpid(), thread = ::syscall(SYS_gettid);
  handle_signal(SIGUSR2, count, SA_RESTART);
  EXPECT_EQ(changed_below_the_stack(process, thread, SIGUSR2), 0);
  EXPECT_EQ(n_calls, 1);
  // With an ordinary handler, the test notices a change.
  struct sigaction action {};
  action.sa_handler = count;
  ::sigaction(SIGUSR2, &action, nullptr);
  EXPECT_GT(changed_below_the_stack(process, thread, SIGUSR2), 0);
  EXPECT_EQ(n_calls, 2);
  ::signal(SIGUSR2, SIG_DFL);
}

}  // namespace
}  // namespace lockstep
