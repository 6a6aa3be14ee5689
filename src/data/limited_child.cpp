// The limited child process of data_file.h.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <fstream>
#include <utility>

#include "base/file.h"
#include "base/signals.h"
#include "data/data_file.h"
#include "data/file.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr int kGoodStatus = 42;  // a status that no crash handler uses
constexpr rlim_t kMoreMemoryBytes = rlim_t{2} << 30;
constexpr int kMillisecondsBetweenLooks = 100;

constexpr int kErrorCodes = 0
#define LOCKSTEP_ERROR(code, exit_status, meaning, remedy) +1
#include "errors.def"
#undef LOCKSTEP_ERROR
    ;
static_assert(kErrorCodes <= 255, "a code travels as one byte");

/// The address space in use. The limit is relative to it, since the child inherits that of its parent.
rlim_t address_space_bytes() {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

void limit(int resource, rlim_t value) {
  rlimit now{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &now) != 0) return;
  const rlimit limit{std::min(value, now.rlim_max), now.rlim_max};
  ::setrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
}

[[noreturn]] void run_child(const std::function<std::string()>& read, unsigned max_seconds, int report, pid_t parent) {
  for (const int signal_number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM})
    std::signal(signal_number, SIG_DFL);
  // A request to stop that the whole process group receives is for the parent, with which the child ends.
  for (const int signal_number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) std::signal(signal_number, SIG_IGN);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kExitFailed);
  const int silence = ::open("/dev/null", O_WRONLY);
  if (silence >= 0) {
    ::dup2(silence, STDOUT_FILENO);
    ::dup2(silence, STDERR_FILENO);
  }
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_AS, address_space_bytes() + kMoreMemoryBytes);
  limit(RLIMIT_CPU, max_seconds);
  ::alarm(max_seconds);
  int status = kExitFailed;
  try {
    std::string text;
    try {
      text = read();
      status = kGoodStatus;
    } catch (const Error& e) {
      text = static_cast<char>(e.code()) + std::string(e.what());
    }
    write_fully(report, text, "the pipe to the parent");
  } catch (const std::exception&) {  // most likely out of memory, which the parent reports
    status = kExitFailed;
  }
  ::_exit(status);
}

/// All that the child writes. Throws what throw_if_stopped() throws.
std::string read_report(int reading) {
  std::string report;
  char buffer[1 << 12];
  while (true) {
    throw_if_stopped();
    pollfd ready{reading, POLLIN, 0};
    if (::poll(&ready, 1, kMillisecondsBetweenLooks) != 1) continue;
    const ssize_t n = ::read(reading, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return report;
    report.append(buffer, static_cast<std::size_t>(n));
  }
}

}  // namespace

#ifdef LOCKSTEP_FUZZ  // a fuzzer must see what happens, and forks of a sanitized process take a long time
ChildVerdict run_in_limited_child(const std::function<std::string()>& read, unsigned) {
  try {
    return {.good = true, .result = read(), .code = {}, .sentence = {}};
  } catch (const Error& e) {
    return {.good = false, .result = {}, .code = e.code(), .sentence = e.what()};
  }
}
#else
ChildVerdict run_in_limited_child(const std::function<std::string()>& read, unsigned max_seconds) {
  int ends[2];
  const bool is_open = ::pipe2(ends, O_CLOEXEC) == 0;
  require(is_open, ErrorCode::system_call, "cannot create a pipe: {}", std::strerror(errno));
  const Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  const pid_t parent = ::getpid(), child = ::fork();
  require(child >= 0, ErrorCode::system_call, "cannot start a child process: {}", system_text(errno));
  if (child == 0) run_child(read, max_seconds, writing.get(), parent);
  writing.reset();

  ChildVerdict verdict;
  int status = 0;
  pid_t ended = -1;
  const auto wait_for_end = [&] {
    do ended = ::waitpid(child, &status, 0);
    while (ended < 0 && errno == EINTR);
  };
  std::string report;
  try {
    report = read_report(reading.get());
  } catch (...) {  // a signal asked to stop
    ::kill(child, SIGKILL);
    wait_for_end();
    throw;
  }
  wait_for_end();
  verdict.good = ended == child && WIFEXITED(status) && WEXITSTATUS(status) == kGoodStatus;
  if (verdict.good) {
    verdict.result = std::move(report);
    return verdict;
  }
  if (report.size() > 1) {
    verdict.code = static_cast<ErrorCode>(static_cast<unsigned char>(report[0]));
    verdict.sentence = report.substr(1);
    return verdict;
  }
  if (ended == child && WIFSIGNALED(status)) {
    const int signal_number = WTERMSIG(status);
    verdict.sentence = signal_number == SIGALRM || signal_number == SIGXCPU
                           ? fmt::format("the library did not finish reading it within {} s", max_seconds)
                           : fmt::format("the library crashed on it ({})", ::strsignal(signal_number));
  } else {
    verdict.sentence = "the library crashed on it or ran out of memory";
  }
  return verdict;
}
#endif

}  // namespace lockstep::data
