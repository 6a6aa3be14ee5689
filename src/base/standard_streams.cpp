#include "base/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "base/process.h"

namespace lockstep {

void prepare_standard_streams() {
  ::signal(SIGPIPE, SIG_IGN);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() returns the lowest free descriptor, and all lower ones are open by now.
    if (::open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY) != stream) ::_exit(EXIT_FAILURE);
  }
}

void flush_standard_output() {
  errno = 0;
  const bool was_written = std::cout.flush().good() && std::fflush(stdout) == 0;
  if (was_written && std::ferror(stdout) == 0) return;
  throw std::system_error(errno != 0 ? errno : EIO, std::generic_category(), "cannot write to standard output");
}

bool is_broken_pipe(const std::system_error& error) { return error.code() == std::errc::broken_pipe; }

void end_by_broken_pipe() {
  ::signal(SIGPIPE, SIG_DFL);
  ::raise(SIGPIPE);
  ::_exit(EXIT_FAILURE);  // SIGPIPE is blocked
}

void write_to_standard_error(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

bool has_cursor(int stream) {
  const std::string terminal = environment("TERM");
  return ::isatty(stream) == 1 && !terminal.empty() && terminal != "dumb" && environment("NO_COLOR").empty();
}

}  // namespace lockstep
