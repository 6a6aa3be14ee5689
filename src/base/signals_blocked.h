// Blocks all signals in threads that are started during its lifetime: they inherit the mask. Only the main thread
// receives signals, since the end of a run depends on its handlers.
#pragma once

#include <pthread.h>

#include <csignal>

namespace lockstep {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace lockstep
