// Included before every file, for clang-tidy and fuzzers only: clang 14 lacks the consteval support that libstdc++ 12
// requires, so <source_location> is empty there.
#pragma once
#include <version>
#if defined(__clang__) && !defined(__cpp_lib_source_location)
namespace std {
struct source_location {
  static constexpr source_location current(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE(),
                                           const char* function = __builtin_FUNCTION()) {
    source_location here;
    here.file_ = file, here.line_ = line, here.function_ = function;
    return here;
  }
  constexpr const char* file_name() const { return file_; }
  constexpr unsigned line() const { return line_; }
  constexpr unsigned column() const { return 0; }
  constexpr const char* function_name() const { return function_; }

 private:
  const char *file_ = "", *function_ = "";
  unsigned line_ = 0;
};
}  // namespace std
#endif
