#include "base/failure.h"

#include <atomic>
#include <utility>

#include "base/printable.h"
#include "base/standard_streams.h"
#include "lockstep/log.h"

namespace lockstep {
namespace {

std::function<void()>& registered() {
  static std::function<void()> action;
  return action;
}
std::atomic<bool> is_noted{false};

}  // namespace

void print_error(const std::string& who, ErrorCode code, const std::string& message) {
  const ErrorEntry& row = entry(code);
  // The message about a wrong command line ends with a pointer to the command's help, which is the remedy.
  const auto see = code == ErrorCode::usage && message.ends_with("--help`") ? message.rfind("; see `") : message.npos;
  const std::string what = message.substr(0, see);
  const std::string remedy = see == message.npos ? std::string(row.remedy) : message.substr(see + 2);
  log::set_progress_line("");
  write_to_standard_error(
      fmt::format("lockstep: {}: {}\n  remedy: {}\n  [{}]\n", who, printable_lines(what), remedy, row.code));
  log::write_to_file(log::Level::error, fmt::format("{} [{}]", message, row.code));
}

void print_error(const std::string& who, const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  print_error(who, known != nullptr ? known->code() : ErrorCode::internal, error.what());
}

void on_failure(std::function<void()> action) { registered() = std::move(action); }

void note_failure() noexcept {
  if (!registered() || is_noted.exchange(true)) return;
  try {
    registered()();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): see the header
  }
}

}  // namespace lockstep
