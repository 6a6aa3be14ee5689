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

}  // namespace

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
