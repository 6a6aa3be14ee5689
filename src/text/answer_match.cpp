#include "text/answer_match.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "text/jinja.h"

namespace lockstep::text {
namespace {

constexpr std::string_view kMark = "#### ";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view trimmed(std::string_view text) { return jinja::stripped(text, true, true, " \t\n\r\v\f"); }

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

constexpr std::size_t kLongestUnstemmed = 3;  // letters

/// The non-ASCII characters whose lower case contains an ASCII letter, in Unicode and in Python. The Kelvin sign
/// becomes k. A dotted capital I becomes i with a combining dot, which separates words.
constexpr std::string_view kKelvin = "\xE2\x84\xAA", kDottedI = "\xC4\xB0";

using Ids = std::vector<std::int32_t>;

/// Maps words to numbers. Equal words have equal numbers.
Ids ids_of(const std::vector<std::string>& words, std::unordered_map<std::string, std::int32_t>& known) {
  Ids ids;
  for (const std::string& word : words)
    ids.push_back(known.try_emplace(word, static_cast<std::int32_t>(known.size())).first->second);
  return ids;
}

RougeScore score(std::size_t common, std::size_t of_text, std::size_t of_reference) {
  const auto part = [&](std::size_t n) {
    return static_cast<double>(common) / static_cast<double>(std::max<std::size_t>(n, 1));
  };
  RougeScore out{.precision = part(of_text), .recall = part(of_reference)};
  const double sum = out.precision + out.recall;
  if (sum > 0) out.f_measure = 2 * out.precision * out.recall / sum;
  return out;
}

template <typename Gram>
RougeScore overlap(const std::vector<Gram>& reference, const std::vector<Gram>& text) {
  std::map<Gram, std::int64_t> left;
  for (const Gram& gram : reference) ++left[gram];
  std::size_t common = 0;
  for (const Gram& gram : text) {
    const auto found = left.find(gram);
    if (found == left.end() || found->second == 0) continue;
    --found->second;
    ++common;
  }
  return score(common, text.size(), reference.size());
}

std::vector<std::pair<std::int32_t, std::int32_t>> pairs_of(const Ids& ids) {
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  for (std::size_t i = 1; i < ids.size(); ++i) pairs.emplace_back(ids[i - 1], ids[i]);
  return pairs;
}

/// The length of the longest common subsequence, with one row of the table.
std::size_t longest_common(const Ids& a, const Ids& b) {
  std::vector<std::size_t> row(b.size() + 1, 0);
  for (const std::int32_t x : a) {
    std::size_t diagonal = 0;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] = x == b[j] ? diagonal + 1 : std::max(above, row[j]);
      diagonal = above;
    }
  }
  return row.back();
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

std::vector<std::string> rouge_words(std::string_view text, Stemming stemming) {
  std::vector<std::string> words;
  std::string word;
  const auto end_word = [&] {
    if (word.empty()) return;
    words.push_back(stemming == Stemming::porter && word.size() > kLongestUnstemmed ? porter_stem(word) : word);
    word.clear();
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (is_letter || (c >= '0' && c <= '9')) {
      word += is_letter ? static_cast<char>(c | 0x20) : c;
    } else if (text.substr(i).starts_with(kKelvin)) {
      word += 'k';
      i += kKelvin.size() - 1;
    } else if (text.substr(i).starts_with(kDottedI)) {
      word += 'i';
      end_word();
      i += kDottedI.size() - 1;
    } else {
      end_word();
    }
  }
  end_word();
  return words;
}

RougeScores rouge(std::string_view reference, std::string_view text, Stemming stemming) {
  std::unordered_map<std::string, std::int32_t> known;
  const Ids expected = ids_of(rouge_words(reference, stemming), known),
            found = ids_of(rouge_words(text, stemming), known);
  return {.rouge1 = overlap(expected, found),
          .rouge2 = overlap(pairs_of(expected), pairs_of(found)),
          .rouge_l = score(longest_common(expected, found), found.size(), expected.size())};
}

}  // namespace lockstep::text
