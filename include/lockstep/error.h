// Errors. The ladder, mildest means first:
//   static_assert            what the compiler can know
//   assert                   hot paths, debug builds only
//   require(condition, ...)  always on: what a caller, a file or a user may get wrong
//   throw Error              the same, where there is no single condition
// Only main catches. A message says what was wanted, what was found, and what to do.
// Every code stands in src/errors.def with its exit status and remedy.
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

/// Exit statuses of every rank. Source: DESIGN, "The command line".
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitStopped = 75;  // stopped by a signal after saving; run again to continue

struct ErrorEntry {
  std::string_view code;
  int exit_status;
  std::string_view meaning;
  std::string_view remedy;
};
/// The row of src/errors.def.
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
