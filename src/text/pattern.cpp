#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <new>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::text {
namespace {

constexpr std::size_t kJitStackStartBytes = 32 << 10;
constexpr std::size_t kJitStackMaxBytes = 8 << 20;
/// Limits the work of one match, in steps of backtracking. Backtracking over a long run of blanks takes one step per
/// blank.
constexpr std::uint64_t kMatchLimit = 1'000'000, kMatchLimitPerByte = 16;
constexpr std::size_t kMaxExpressionBytes = 64 << 10;

std::string pcre2_text(int error) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(error, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// ---- Dialects -------------------------------------------------------------------------------------------------------

struct ClassEscape {
  char letter;
  std::string_view members;  // as they are written between brackets
};
// PCRE2's own \s contains U+180E, and its \w lacks marks. U+200C and other members depend on the release.
constexpr std::array<ClassEscape, 3> kClasses{
    {{'s', R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"},
     {'w', R"(\p{L}\p{M}\p{Nd}\p{Pc})"},
     {'d', R"(\p{Nd})"}}};

/// Translates Oniguruma's dialect (doc/RE, syntax Ruby) to PCRE2's (pcre2pattern, pcre2unicode), as far as both mean
/// the same.
class Translator {
 public:
  Translator(std::string_view expression, const std::string& where) : expression_(expression), where_(where) {}

  std::string translate() {
    while (at_ < expression_.size()) {
      const char c = expression_[at_];
      if (c == '\\')
        escape(false);
      else if (c == '[')
        character_class();
      else if (c == '(')
        group();
      else if (c == '{')
        repetition();
      else if (c == '^' || c == '$')
        refuse(std::string(1, c));
      else
        copy(1);
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct) const {
    fail(ErrorCode::model_feature, "{} has the pattern {}; `{}` in it is not supported", where_, expression_,
         construct);
  }
  std::string_view rest() const { return expression_.substr(at_); }
  void copy(std::size_t n) {
    out_ += expression_.substr(at_, n);
    at_ += n;
  }

  void escape(bool in_class) {
    if (at_ + 1 >= expression_.size()) refuse("\\");
    const char letter = expression_[at_ + 1];
    for (const ClassEscape& known : kClasses) {
      const bool negated = letter == known.letter - 'a' + 'A';
      if (letter != known.letter && !negated) continue;
      if (in_class && negated) refuse(rest().substr(0, 2));  // this would be the union of a class and a complement
      out_ += in_class ? std::string(known.members) : fmt::format("[{}{}]", negated ? "^" : "", known.members);
      at_ += 2;
      return;
    }
    const auto byte = static_cast<unsigned char>(letter);
    const bool is_letter_or_digit = byte < 0x80 && std::isalnum(byte) != 0;
    if (!is_letter_or_digit || letter == 'r' || letter == 'n' || letter == 't' || letter == 'f') return copy(2);
    if (at_ + 2 < expression_.size() && expression_[at_ + 2] == '{' && rest().find('}') != std::string_view::npos) {
      const std::size_t end = rest().find('}');
      if (letter == 'x') return copy(end + 1);
      if ((letter == 'p' || letter == 'P') && is_general_category(rest().substr(3, end - 3))) return copy(end + 1);
      refuse(rest().substr(0, end + 1));
    }
    refuse(rest().substr(0, 2));
  }

  /// "L", "Lu". (PCRE2 and Oniguruma interpret the names of scripts as different sets.)
  static bool is_general_category(std::string_view name) {
    if (name.starts_with('^')) name.remove_prefix(1);
    return (name.size() == 1 || (name.size() == 2 && name[1] >= 'a' && name[1] <= 'z')) &&
           std::string_view("LMNPSZC").find(name[0]) != std::string_view::npos;
  }

  void character_class() {
    copy(1);
    if (rest().starts_with('^')) copy(1);
    if (rest().starts_with(']')) refuse("[]");
    while (at_ < expression_.size() && expression_[at_] != ']') {
      if (expression_[at_] == '[' || rest().starts_with("&&")) refuse(rest().substr(0, 2));
      if (expression_[at_] == '\\')
        escape(true);
      else
        copy(1);
    }
    if (at_ >= expression_.size()) refuse("[");
    copy(1);
  }

  void group() {
    if (!rest().starts_with("(?")) return copy(1);
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?>", "(?i:", "(?<=", "(?<!"})
      if (rest().starts_with(known)) return copy(known.size());
    refuse(rest().substr(0, 4));
  }

  /// {n}, {n,}, {n,m}. Oniguruma interprets a `+` after it as another repetition, and also the `?` of {n}?.
  void repetition() {
    std::size_t n = 1;
    const auto digits = [&] {
      const std::size_t begin = n;
      while (at_ + n < expression_.size() && expression_[at_ + n] >= '0' && expression_[at_ + n] <= '9') ++n;
      return n > begin;
    };
    const auto next_is = [&](char c) { return at_ + n < expression_.size() && expression_[at_ + n] == c; };
    if (!digits()) refuse("{");
    const bool is_range = next_is(',');
    if (is_range) {
      ++n;
      digits();
    }
    if (!next_is('}')) refuse("{");
    ++n;
    if (next_is('+') || (next_is('?') && !is_range)) refuse(rest().substr(0, n + 1));
    copy(n);
  }

  std::string_view expression_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string to_pcre2(std::string_view expression, const std::string& where) {
  return Translator(expression, where).translate();
}

// ---- Memory ---------------------------------------------------------------------------------------------------------

struct MatchMemory::State {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr);  // null: no JIT

  ~State() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

MatchMemory::MatchMemory() : state_(std::make_unique<State>()) {
  if (state_->data == nullptr || state_->context == nullptr) throw std::bad_alloc();
  if (state_->stack != nullptr) pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
}

MatchMemory::~MatchMemory() = default;

// ---- Matching -------------------------------------------------------------------------------------------------------

struct Pattern::Code {
  std::string expression;
  pcre2_code* compiled = nullptr;

  ~Code() { pcre2_code_free(compiled); }
};

Pattern::Pattern(std::string_view expression, const std::string& where) : code_(std::make_unique<Code>()) {
  require(expression.size() <= kMaxExpressionBytes, ErrorCode::model_feature,
          "{} has a pattern of {} bytes; at most {} are supported", where, expression.size(), kMaxExpressionBytes);
  code_->expression = expression;
  const std::string translated = to_pcre2(expression, where);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  code_->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, context.get());
  require(code_->compiled != nullptr, ErrorCode::model_feature, "{} has the pattern {}, which PCRE2 refuses: {}", where,
          expression, pcre2_text(error));
  std::uint32_t can_be_empty = 0;
  pcre2_pattern_info(code_->compiled, PCRE2_INFO_MATCHEMPTY, &can_be_empty);
  require(can_be_empty == 0, ErrorCode::model_feature,
          "{} has the pattern {}, which matches the empty string; this is not supported", where, expression);
  pcre2_jit_compile(code_->compiled, PCRE2_JIT_COMPLETE);  // if this fails, pcre2_match() interprets the pattern
}

Pattern Pattern::literal(std::string_view text, const std::string& where) {
  std::string expression;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && std::isalnum(byte) == 0)
      expression += fmt::format("\\x{{{:x}}}", byte);
    else
      expression += c;
  }
  return {expression, where};
}

Pattern::Pattern(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

std::optional<Pattern::Match> Pattern::find(std::string_view subject, std::size_t from, MatchMemory& memory) const {
  const MatchMemory::State& state = *memory.state_;
  const std::uint64_t limit = kMatchLimit + kMatchLimitPerByte * subject.size();
  pcre2_set_match_limit(state.context, static_cast<std::uint32_t>(std::min<std::uint64_t>(limit, UINT32_MAX)));
  const int result = pcre2_match(code_->compiled, reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), from,
                                 PCRE2_NO_UTF_CHECK, state.data, state.context);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  require(result >= 0, ErrorCode::model_feature, "the tokenizer's pattern {} cannot be matched in this text: {}",
          code_->expression, pcre2_text(result));
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(state.data);
  return Match{range[0], range[1]};
}

std::string pcre2_version() {
  std::array<char, 64> buffer{};
  pcre2_config(PCRE2_CONFIG_VERSION, buffer.data());
  const std::string version = buffer.data();
  return version.substr(0, version.find(' '));
}

}  // namespace lockstep::text
