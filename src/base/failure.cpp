#include "base/failure.h"

#include <execinfo.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <new>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/printable.h"
#include "base/signals.h"
#include "base/standard_streams.h"
#include "lockstep/log.h"
#include "lockstep/memory_limit.h"

namespace lockstep {
namespace {

std::function<void()>& registered() {
  static std::function<void()> action;
  return action;
}
std::atomic<bool> is_noted{false}, is_printed{false}, is_exit_expected{false};
std::array<char, 4096> status_path{};  // empty: no status is written after a crash

/// Whether this is what the system or libjpeg says if an allocation fails.
bool names_memory(std::string_view message) {
  return message.find(std::generic_category().message(ENOMEM)) != message.npos ||
         message.find("Insufficient memory") != message.npos;
}

/// Runs in a signal handler, possibly while the heap is damaged or locked: nothing here allocates.
void report_crash(int signal) {
  static std::atomic_flag is_reported = ATOMIC_FLAG_INIT;
  while (is_reported.test_and_set()) ::pause();  // another thread crashed too
  const MemoryLimit limit = limit_of_process();
  const ErrorEntry& row = entry(limit.is_reached() ? ErrorCode::out_of_memory : ErrorCode::internal);
  std::array<char, 1024> text;
  const auto printed = fmt::format_to_n(text.data(), text.size(),
                                        "lockstep: error: the process crashed (signal {}){}{}\n  remedy: {}\n  [{}]\n",
                                        signal, limit.is_reached() ? ", most likely for lack of memory: " : "",
                                        limit.is_reached() ? limit.what : "", row.remedy, row.code);
  write_to_standard_error({text.data(), printed.out});
  const int status = status_path[0] != '\0' ? ::open(status_path.data(), O_WRONLY | O_TRUNC | O_CLOEXEC) : -1;
  if (status >= 0) [[maybe_unused]]
    const ssize_t n = ::write(status, "failed\n", 7);
  if (limit.is_reached()) ::_exit(kExitFailed);
  std::array<void*, 64> frames;
  ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), frames.size()), STDERR_FILENO);
  ::signal(signal, SIG_DFL);
  ::raise(signal);  // when this handler returns
}

/// OpenMP's library, for one, calls exit() if it cannot start a thread.
void report_exit() {
  if (is_exit_expected || is_printed) return;
  print_error("error", Error(ErrorCode::library,
                             "a library ended the process, for the reason above; if it could not "
                             "start a thread: " +
                                 system_text(EAGAIN)));
  note_failure();
}

}  // namespace

Error as_error(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  const auto* of_system = dynamic_cast<const std::system_error*>(&error);
  const bool is_thread = of_system != nullptr && of_system->code() == std::errc::resource_unavailable_try_again;
  const bool is_allocation = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const std::string what = is_thread       ? "cannot start a thread"
                           : is_allocation ? "the system is out of memory"
                                           : error.what();
  const ErrorCode code = known != nullptr       ? known->code()
                         : of_system != nullptr ? ErrorCode::system_call
                                                : ErrorCode::internal;
  if (code == ErrorCode::out_of_memory) return *known;
  // Most libraries do not say why they fail.
  const bool says_why = known != nullptr && code != ErrorCode::library && code != ErrorCode::comm_mpi;
  if (is_allocation || names_memory(what) || (!says_why && limit_of_process().is_reached()))
    return {ErrorCode::out_of_memory, what + memory_limit_in_message()};
  return {code, is_thread ? what + ": " + system_text(EAGAIN) : what};
}

void print_error(const std::string& who, ErrorCode code, const std::string& message) {
  const ErrorEntry& row = entry(code);
  // The message about a wrong command line ends with a pointer to the command's help, which is the remedy.
  const auto see = code == ErrorCode::usage && message.ends_with("--help`") ? message.rfind("; see `") : message.npos;
  const std::string what = message.substr(0, see);
  const std::string remedy = see == message.npos ? std::string(row.remedy) : message.substr(see + 2);
  // A message that all ranks have agreed on begins with the rank that it is about: "rank 1 on node2: ...".
  const std::string about = what.substr(0, what.find(": "));
  const bool names_rank = about.starts_with("rank ") && std::ranges::count(about, ' ') == 3;
  const std::string place = who.starts_with("rank ") && names_rank ? "" : who + ": ";
  is_printed = true;
  log::set_progress_line("");
  write_to_standard_error(
      fmt::format("lockstep: {}{}\n  remedy: {}\n  [{}]\n", place, printable_lines(what), remedy, row.code));
  log::write_to_file(log::Level::error, fmt::format("{} [{}]", message, row.code));
}

void print_error(const std::string& who, const std::exception& error) {
  const Error known = as_error(error);
  print_error(who, known.code(), known.what());
}

void on_failure(std::function<void()> action, const std::string& status_file) {
  registered() = std::move(action);
  const bool fits = status_file.size() < status_path.size();
  *std::copy_n(status_file.begin(), fits ? status_file.size() : 0, status_path.begin()) = '\0';
}

void note_failure() noexcept {
  if (!registered() || is_noted.exchange(true)) return;
  try {
    registered()();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): see the header
  }
}

void catch_crashes() {
  registered();  // constructed before report_exit() is registered, and so destroyed after it has run
  std::atexit(report_exit);
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) {
    struct sigaction present {};
    ::sigaction(signal, nullptr, &present);
    if (present.sa_handler == SIG_DFL) handle_signal(signal, report_crash);  // a sanitizer keeps its own
  }
}

void exit_is_expected() { is_exit_expected = true; }

std::unique_ptr<World>& current_world() {
  static std::unique_ptr<World> world;
  return world;
}

// The table of src/errors.def.
const ErrorEntry& entry(ErrorCode code) {
  static constexpr auto kTable = std::to_array<ErrorEntry>({
#define LOCKSTEP_ERROR(code, exit_status, meaning, remedy) {#code, exit_status, meaning, remedy},
#include "errors.def"
#undef LOCKSTEP_ERROR
  });
  return kTable.at(static_cast<std::size_t>(code));
}

}  // namespace lockstep
