// Standard input, output and error of this process. They may be closed, full, or a pipe whose reader has gone: training
// must survive that, and a command whose results were not written must not succeed.
#pragma once

#include <unistd.h>

#include <string_view>
#include <system_error>

namespace lockstep {

/// To be called first in main. Ignores SIGPIPE, so that a write to a pipe without a reader only fails. Opens every
/// stream that is closed, so that no other file gets its descriptor and then receives the log. Standard input and error
/// are opened as /dev/null, and standard output so that writing to it fails.
void prepare_standard_streams();

/// Writes out what was printed on standard output. Throws std::system_error if any of it could not be written.
void flush_standard_output();
/// Whether the reader of standard output has gone, like `head` in `lockstep help config | head`.
bool is_broken_pipe(const std::system_error& error);
/// Ends the process as SIGPIPE would have, which is what shells expect of a program whose reader has gone.
[[noreturn]] void end_by_broken_pipe();

/// Uses a single write(), so that the lines of several ranks are not mixed. Text that cannot be written is dropped.
void write_to_standard_error(std::string_view text) noexcept;
/// True if the stream is a terminal on which lines may be erased and drawn again. TERM=dumb, an empty TERM and NO_COLOR
/// (no-color.org) ask for plain text without escape sequences.
bool has_cursor(int stream = STDERR_FILENO);

}  // namespace lockstep
