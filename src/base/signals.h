// Requests to stop: SIGTERM, SIGINT, SIGUSR1, SIGUSR2 and SIGHUP set a flag, which training checks once per step, and
// the start of a training between its parts. SIGHUP stays ignored if it was ignored before, as with nohup.
//
// What launchers do with them: srun forwards what Slurm sends and waits. Open MPI's mpirun forwards SIGUSR1 and SIGUSR2
// and waits; on SIGTERM, SIGINT and SIGHUP, it sends SIGCONT, SIGTERM and SIGKILL to each rank, one second apart, so
// the ranks have one second to save. (OMPI_MCA_odls_base_sigkill_timeout of version 4.1 sets another number of seconds,
// but every job that fails then takes longer by twice that time.) scripts/launch turns SIGTERM into SIGUSR2, so that
// ranks have the time they need.
#pragma once

#include <pthread.h>

#include <csignal>

namespace lockstep {

class World;

/// Calls `handler`, on a stack of its own, when the signal arrives; `flags` are those of sigaction(2). Must be called
/// by the main thread, which runs the kernels, and to which the system delivers the signals of the process.
///
/// Kernels of oneDNN for AVX2 use memory below the stack pointer, beyond the 128-byte red zone that the system
/// preserves. A handler on the same stack would overwrite it, and so corrupt what these kernels write, or the heap.
void handle_signal(int signal, void (*handler)(int), int flags = 0);

/// Catches these signals from now on. The SIGINT (Ctrl-C) with this number, counted after the first signal, ends the
/// process immediately.
void catch_stop_signals(int last_repeated_interrupt = 1);

/// Whether one has arrived.
bool stop_requested();
/// The name of the first one that arrived, such as "SIGTERM".
const char* stop_signal_name();
/// The number of SIGINTs that have arrived after the first signal.
int n_repeated_interrupts();
/// Whether SIGINT or SIGTERM has arrived after the first signal: the sender may soon kill the process.
bool stop_requested_again();

/// A signal asked a rank to stop before the first step, or a command to stop. Thrown on all ranks; not an error.
struct StoppedBySignal {};
/// For a single-process command that may end at any point, because it writes under partial names. After this call,
/// throw_if_stopped() throws StoppedBySignal if a signal has arrived. Before it, and in training, throw_if_stopped()
/// does nothing.
void stop_anywhere();
void throw_if_stopped();
/// Collective: throws StoppedBySignal on all ranks if a signal has asked any of them to stop.
void stop_if_requested(World& world);

/// Blocks all signals in threads that are started during its lifetime: they inherit the mask. Only the main thread
/// receives signals, since the end of a run depends on its handlers.
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
