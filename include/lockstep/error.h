// Errors. The levels of checking:
//   static_assert            what the compiler can check
//   assert                   hot paths, in debug builds only
//   require(condition, ...)  always: mistakes of a caller, a file or a user
//   fail(...)                the same, where there is no single condition
// An error ends the command in main. Elsewhere it is caught only where work can go on without what failed: a cache, an
// algorithm, an optional file. A message says what was expected, what was found, and what to do.
// src/errors.def lists every code with its exit status and remedy.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

enum class ErrorCode {
#define LOCKSTEP_ERROR(code, exit_status, meaning, remedy) code,
#include "errors.def"
#undef LOCKSTEP_ERROR
};

/// Exit statuses of every rank (docs/using.md).
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitStopped = 75;  // stopped by a signal after saving; rerun the command to resume

struct ErrorEntry {
  std::string_view code;
  int exit_status;
  std::string_view meaning;
  std::string_view remedy;
};
/// The row of this code in src/errors.def.
const ErrorEntry& entry(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
void require(bool condition, ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace lockstep
