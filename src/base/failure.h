// What a failing process does before it ends: it prints its error and performs a registered action. Either main ends it
// after an error, or the communication thread does when the job is lost and nothing can be thrown. Training registers
// an action that sets RUN/status to `failed`. A crash, and a library that calls exit(), are reported too.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/communicator.h"
#include "lockstep/error.h"

namespace lockstep {

/// The Error that an exception means. What is not an Error has the code `internal`. If `ulimit -v` or `ulimit -d` is
/// reached, an error of a library or of the system becomes out_of_memory, because most libraries do not say so.
Error as_error(const std::exception& error);

/// Prints an error in the common format (the message, the remedy and the code) and writes it to RUN/log.txt. `who`:
/// "rank 1 on node2", or "error" if there is only one rank.
void print_error(const std::string& who, ErrorCode code, const std::string& message);
/// The same for an exception, with as_error().
void print_error(const std::string& who, const std::exception& error);

/// Replaces the registered action; an empty function removes it. Must not be called while another thread may fail.
/// `status_file`: a crash, after which no function can be called, writes `failed` to this file instead.
void on_failure(std::function<void()> action, const std::string& status_file = "");

/// Performs the action the first time it is called. Errors in it are ignored, since the failure itself was reported.
void note_failure() noexcept;

/// From now on, signals that mean a crash, exceptions that leave a thread and calls of exit() in a library are reported
/// as errors: as out_of_memory (status 1) if a limit on memory is reached, and otherwise as `internal`, with a list of
/// the calling functions, after which the process ends as the signal demands. To be called by main.
void catch_crashes();
/// main returns from now on: exit() is called as usual.
void exit_is_expected();

/// The world that main must end when a command throws. A command that starts MPI stores its World here:
///   World& world = *(current_world() = comm::start_world(...));
/// so that it outlives the exception and main can end all ranks at once.
std::unique_ptr<World>& current_world();

}  // namespace lockstep
