// An action that a failing process still performs, whoever ends it: main after an error, or the communication thread
// when the job is lost and nothing can be thrown. Training registers that RUN/status becomes `failed`.
#pragma once

#include <functional>

namespace lockstep {

/// Replaces the registered action; an empty function removes it. Must not be called while another thread may fail.
void on_failure(std::function<void()> action);

/// Performs the action the first time it is called. Errors in it are ignored, since the failure itself was reported.
void note_failure() noexcept;

}  // namespace lockstep
