// Signal handlers that run on their own stack.
#pragma once

namespace lockstep {

/// Calls `handler` when the signal arrives; `flags` are those of sigaction(2). Must be called by the main thread, which
/// runs the kernels, and to which the system delivers the signals of the process.
///
/// Kernels of oneDNN for AVX2 use memory below the stack pointer, beyond the 128-byte red zone that the system
/// preserves. A handler on the same stack would overwrite it, and so corrupt what these kernels write, or the heap.
void handle_signal(int signal, void (*handler)(int), int flags = 0);

}  // namespace lockstep
