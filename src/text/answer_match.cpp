#include "text/answer_match.h"

#include <algorithm>

namespace lockstep::text {
namespace {

constexpr std::string_view kMark = "#### ";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\v\f";
  const std::size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

/// Removes commas, dollar signs and a full stop at the end, and converts to lower case.
std::string plain_number(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (c != ',' && c != '$') out += c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  if (out.ends_with('.')) out.pop_back();
  return out;
}

/// The first match of `#### (\-?[0-9\.\,]+)`.
std::optional<std::string> strict_number(std::string_view answer) {
  for (std::size_t at = answer.find(kMark); at != std::string_view::npos; at = answer.find(kMark, at + 1)) {
    const std::string_view rest = answer.substr(at + kMark.size());
    std::size_t n = rest.starts_with('-') ? 1 : 0;
    const std::size_t begin = n;
    while (n < rest.size() && (is_digit(rest[n]) || rest[n] == '.' || rest[n] == ',')) ++n;
    if (n > begin) return plain_number(rest.substr(0, n));
  }
  return std::nullopt;
}

/// The last match of `(-?[$0-9.,]{2,})|(-?[0-9]+)`.
std::optional<std::string> last_number(std::string_view answer) {
  const auto is_part = [](char c) { return is_digit(c) || c == '$' || c == '.' || c == ','; };
  std::optional<std::string> found;
  for (std::size_t i = 0; i < answer.size();) {
    const std::size_t begin = i + (answer[i] == '-' ? 1 : 0);
    std::size_t end = begin;
    while (end < answer.size() && is_part(answer[end])) ++end;
    if (end - begin >= 2 || (end - begin == 1 && is_digit(answer[begin]))) {
      found = plain_number(answer.substr(i, end - i));
      i = end;
    } else {
      ++i;
    }
  }
  return found;
}

}  // namespace

std::optional<std::string> final_number(std::string_view reference) {
  const std::size_t at = reference.rfind(kMark);
  if (at == std::string_view::npos) return std::nullopt;
  return plain_number(trimmed(reference.substr(at + kMark.size())));
}

AnswerMatch match_answer(std::string_view reference, std::string_view answer) {
  const std::optional<std::string> expected = final_number(reference);
  if (!expected) return {.is_exact = trimmed(reference) == trimmed(answer)};
  return {.has_final_number = true,
          .is_exact = strict_number(answer) == expected,
          .is_flexible = last_number(answer) == expected};
}

}  // namespace lockstep::text
