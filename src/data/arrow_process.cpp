#include "data/arrow_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/signals.h"
#include "base/utf8.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kReadBytes = 256u << 10;
constexpr int kMillisecondsBetweenLooks = 100;
constexpr int kCannotStart = 127;  // the status of the dynamic linker

/// Beside this program, in the folder above (tests) or where `make install` puts it. Empty if it is not there.
std::string arrow_program() {
  if (const char* given = std::getenv("LOCKSTEP_ARROW"); given != nullptr && *given != '\0') return given;
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place : {"lockstep-arrow", "../lockstep-arrow", "../lib/lockstep/lockstep-arrow"})
    if (fs::exists(folder / place, error)) return (folder / place).string();
  return "";
}

std::pair<pid_t, Descriptor> start(const std::string& program, std::vector<std::string> arguments) {
  int ends[2];
  require(::pipe2(ends, O_CLOEXEC) == 0, ErrorCode::system_call, "cannot create a pipe: {}", system_text(errno));
  Descriptor reading(ends[0]);
  const Descriptor writing(ends[1]);
  arguments.insert(arguments.begin(), program);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, writing.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t process = -1;
  const int error = ::posix_spawn(&process, program.c_str(), &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  require(error == 0, ErrorCode::system_call, "cannot start {}: {}", program, system_text(error));
  return {process, std::move(reading)};
}

}  // namespace

ArrowProcess::ArrowProcess(std::string path, const char* what, std::vector<std::string> arguments,
                           std::uint64_t max_bytes)
    : path_(std::move(path)), what_(what), max_bytes_(max_bytes) {
  const std::string program = arrow_program();
  require(!program.empty(), ErrorCode::not_supported,
          "{} is {}, for which Lockstep needs the libraries of Arrow (Parquet included), with which it was not built: "
          "install them, or run `make deps`, which fetches them, then `make`",
          path_, what_);
  arguments.insert(arguments.begin(), path_);
  std::tie(process_, output_) = start(program, std::move(arguments));
}

ArrowProcess::~ArrowProcess() {
  if (process_ < 0) return;
  ::kill(process_, SIGKILL);
  while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) continue;
}

bool ArrowProcess::next(char kind, std::string_view& payload) {
  while (!is_over_) {
    const std::string_view head = take(1 + sizeof(std::uint32_t));
    const char found = head[0];
    std::uint32_t n_bytes = 0;
    std::memcpy(&n_bytes, head.data() + 1, sizeof n_bytes);
    require(n_bytes <= max_bytes_, ErrorCode::data_source,
            "{}: a row has more than {} bytes; --max-line allows longer ones, but a document is held in memory as a "
            "whole",
            path_, max_bytes_);
    payload = take(n_bytes);
    if (found == 'P' && n_bytes == sizeof done_bytes_) std::memcpy(&done_bytes_, payload.data(), n_bytes);
    if (found == 'E')
      fail(ErrorCode::data_source, "{} cannot be read as {}: {}", path_, what_,
           valid_utf8(payload.substr(0, payload.find('\n'))));
    is_over_ = found == 'D';
    if (found == kind) return true;
  }
  return false;
}

std::string_view ArrowProcess::take(std::size_t n_bytes) {
  if (buffer_.size() - used_ < n_bytes) {
    buffer_.erase(0, used_);
    used_ = 0;
  }
  while (buffer_.size() - used_ < n_bytes) {
    throw_if_stopped();
    pollfd ready{output_.get(), POLLIN, 0};
    if (::poll(&ready, 1, kMillisecondsBetweenLooks) != 1) continue;
    const std::size_t before = buffer_.size();
    buffer_.resize(before + std::max(kReadBytes, std::min(n_bytes - before, before)));
    const ssize_t n = ::read(output_.get(), buffer_.data() + before, buffer_.size() - before);
    buffer_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    if (n == 0 || (n < 0 && errno != EINTR)) fail_ended();
  }
  used_ += n_bytes;
  return std::string_view(buffer_).substr(used_ - n_bytes, n_bytes);
}

void ArrowProcess::fail_ended() {
  int status = 0;
  while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) continue;
  process_ = -1;
  require(!WIFEXITED(status) || WEXITSTATUS(status) != kCannotStart, ErrorCode::not_supported,
          "the libraries of Arrow cannot be loaded, which {} needs: `ldd {}` says which", path_, arrow_program());
  const int signal_number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  fail(ErrorCode::data_source, "{} cannot be read as {}: {}", path_, what_,
       signal_number == SIGXCPU   ? "the library did not finish reading a part of it within 30 s"
       : signal_number == SIGKILL ? "the process that read it was killed, most likely for lack of memory"
       : signal_number != 0       ? fmt::format("the library crashed on it ({})", ::strsignal(signal_number))
                                  : "the process that read it ended");
}

}  // namespace lockstep::data
