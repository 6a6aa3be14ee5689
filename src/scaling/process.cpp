#include "scaling/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "lockstep/error.h"
#include "scaling/statistics.h"

namespace lockstep::scaling {
namespace {

using namespace std::chrono_literals;

/// The arguments of exec(), prepared before fork(): the child may only call async-signal-safe functions.
struct Prepared {
  explicit Prepared(const Command& command) : words(command.words) {
    std::map<std::string, std::string> variables;
    for (char** each = environ; *each != nullptr; ++each) {
      const std::string text = *each;
      variables[text.substr(0, text.find('='))] = text;
    }
    for (const auto& [name, value] : command.environment) variables[name] = fmt::format("{}={}", name, value);
    for (auto& [name, text] : variables) environment.push_back(std::move(text));
    for (std::string& word : words) argv.push_back(word.data());
    for (std::string& text : environment) envp.push_back(text.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
  }
  std::vector<std::string> words, environment;
  std::vector<char*> argv, envp;
};

/// Replaces this process by the program. On failure, writes the error number to the pipe.
[[noreturn]] void become(const Prepared& prepared, const Command& command, int out, int errors, int failure) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  for (const int signal : {SIGPIPE, SIGXFSZ, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_DFL);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(errors, STDERR_FILENO);
  if (command.directory.empty() || ::chdir(command.directory.c_str()) == 0)
    ::execvpe(prepared.argv.front(), prepared.argv.data(), prepared.envp.data());
  const int problem = errno;
  [[maybe_unused]] const auto written = ::write(failure, &problem, sizeof problem);
  ::_exit(127);
}

pid_t start(const Command& command, int out, int errors) {
  const Prepared prepared(command);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail(ErrorCode::system_call, "cannot create a pipe: {}", system_text(errno));
  const Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  const pid_t pid = ::fork();
  require(pid >= 0, ErrorCode::system_call, "cannot start a process: {}", system_text(errno));
  if (pid == 0) become(prepared, command, out, errors, ends[1]);
  writing = Descriptor();
  int problem = 0;
  if (::read(reading.get(), &problem, sizeof problem) == sizeof problem) {
    ::waitpid(pid, nullptr, 0);
    fail(ErrorCode::study_launcher, "{} cannot be started{}: {}", command.words.front(),
         command.directory.empty() ? "" : " in " + command.directory, system_text(problem));
  }
  return pid;
}

int status_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

double seconds_of(const rusage& usage) {
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * t.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double children_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  return seconds_of(usage);
}

std::string content_of(const Descriptor& file) {
  std::string text(size_bytes(file, "the output of a program"), '\0');
  read_at(file, "the output of a program", std::as_writable_bytes(std::span(text)), 0);
  return text;
}

}  // namespace

std::string text_of(const Command& command) {
  const auto quoted = [](const std::string& word) {
    constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+./:=,@%";
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
    std::string text = "'";
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return text + "'";
  };
  std::string text;
  for (const auto& [name, value] : command.environment) text += fmt::format("{}={} ", name, quoted(value));
  for (const std::string& word : command.words) text += (&word == command.words.data() ? "" : " ") + quoted(word);
  return text;
}

Ended run(const Command& command, const std::string& output, const std::function<bool()>& must_stop) {
  const Descriptor file = open_file(output, O_WRONLY | O_CREAT | O_TRUNC);
  const Clock::time_point begin = Clock::now();
  const double cpu_before = children_seconds();
  const pid_t pid = start(command, file.get(), file.get());
  Ended ended;
  Clock::time_point stopped;
  int wait_status = 0;
  for (;;) {
    const pid_t found = ::waitpid(pid, &wait_status, WNOHANG);
    if (found == pid) break;
    require(found == 0 || errno == EINTR, ErrorCode::system_call, "cannot wait for a process: {}", system_text(errno));
    if (!ended.was_stopped && must_stop()) {
      ended.was_stopped = true;
      stopped = Clock::now();
      ::kill(pid, SIGTERM);
    }
    constexpr double kPatienceSeconds = 10;
    if (ended.was_stopped && seconds_since(stopped) > kPatienceSeconds) ::kill(-pid, SIGKILL);
    std::this_thread::sleep_for(20ms);
  }
  if (ended.was_stopped) ::kill(-pid, SIGKILL);  // processes that the program has left behind
  ended.status = status_of(wait_status);
  ended.seconds = seconds_since(begin);
  ended.cpu_seconds = children_seconds() - cpu_before;
  return ended;
}

Captured capture(const Command& command) {
  const std::string folder = std::filesystem::temp_directory_path().string() + "/lockstep";
  const Descriptor out = create_unnamed_file(folder), errors = create_unnamed_file(folder);
  const pid_t pid = start(command, out.get(), errors.get());
  int wait_status = 0;
  while (::waitpid(pid, &wait_status, 0) < 0)
    require(errno == EINTR, ErrorCode::system_call, "cannot wait for a process: {}", system_text(errno));
  return {.status = status_of(wait_status), .output = content_of(out), .errors = content_of(errors)};
}

double busy_core_seconds() {
  std::ifstream in("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, irq = 0, softirq = 0;
  if (!(in >> name >> user >> nice >> system >> idle >> waiting >> irq >> softirq) || name != "cpu") return kUnknown;
  return (user + nice + system + irq + softirq) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double busy_cores_of_others(double before, double after, double own_seconds, double elapsed_seconds) {
  return elapsed_seconds > 0 ? std::max(0.0, (after - before - own_seconds) / elapsed_seconds) : kUnknown;
}

double own_core_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return seconds_of(usage) + children_seconds();
}

std::string machine_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  in >> id;
  return id;
}

}  // namespace lockstep::scaling
