// What a failing process does before it ends: it prints its error and performs a registered action. Either main ends it
// after an error, or the communication thread does when the job is lost and nothing can be thrown. Training registers
// an action that sets RUN/status to `failed`.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "lockstep/error.h"

namespace lockstep {

/// Prints an error in the common format (the message, the remedy and the code) and writes it to RUN/log.txt. `who`:
/// "rank 1 on node2", or "error" if there is only one rank.
void print_error(const std::string& who, ErrorCode code, const std::string& message);
/// The same for an exception. One that is not an Error has the code `internal`.
void print_error(const std::string& who, const std::exception& error);

/// Replaces the registered action; an empty function removes it. Must not be called while another thread may fail.
void on_failure(std::function<void()> action);

/// Performs the action the first time it is called. Errors in it are ignored, since the failure itself was reported.
void note_failure() noexcept;

}  // namespace lockstep
