// What a process that fails still does, whoever ends it: main after an error, or the communication thread when the job
// is lost and nobody can throw. Training registers that RUN/status becomes `failed`.
#pragma once

#include <functional>

namespace lockstep {

/// Replaces what was registered before; empty: nothing. Not while another thread may fail.
void on_failure(std::function<void()> action);

/// Does it, the first time that it is called. Errors of it are lost: the failure itself was said.
void note_failure() noexcept;

}  // namespace lockstep
