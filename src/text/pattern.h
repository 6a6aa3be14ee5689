// Regular expressions of tokenizers, with Unicode classes: PCRE2 with its JIT compiler.
//
// Hugging Face's library uses Oniguruma. What both dialects understand in the same way is passed on, classes whose
// members differ (\s, \w, \d) are spelled out, and everything else is an error that names the construct. An expression
// must not match the empty string.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::text {

/// What one thread needs to match: PCRE2's memory. It can be used for any number of patterns, one after the other.
class MatchMemory {
 public:
  MatchMemory();
  ~MatchMemory();

 private:
  friend class Pattern;
  struct State;
  std::unique_ptr<State> state_;
};

/// Thread-safe: each thread has its own MatchMemory.
class Pattern {
 public:
  struct Match {
    std::size_t begin = 0, end = 0;  // bytes
  };

  /// Throws model_feature if the expression is not supported. `where` begins the message.
  Pattern(std::string_view expression, const std::string& where);
  /// A pattern that matches exactly this text.
  static Pattern literal(std::string_view text, const std::string& where);
  Pattern(Pattern&&) noexcept;
  ~Pattern();

  /// The first match at or after the byte `from` of `subject`, which must be valid UTF-8.
  std::optional<Match> find(std::string_view subject, std::size_t from, MatchMemory& memory) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

/// The expression in PCRE2's dialect.
std::string to_pcre2(std::string_view expression, const std::string& where);

/// The version of PCRE2, for lists of versions.
std::string pcre2_version();

}  // namespace lockstep::text
