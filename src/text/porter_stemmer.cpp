// The Porter stemmer, step by step.
#include <span>
#include <utility>

#include "text/answer_match.h"

namespace lockstep::text {
namespace {

bool is_vowel_letter(char c) { return c == 'a' || c == 'e' || c == 'i' || c == 'o' || c == 'u'; }

/// A y is a consonant if it begins a word or follows a vowel.
bool is_consonant(std::string_view word, std::size_t i) {
  bool is_inverted = false;
  for (; i > 0 && word[i] == 'y'; --i) is_inverted = !is_inverted;
  return !is_vowel_letter(word[i]) != is_inverted;
}

/// m of [C](VC){m}[V], where C and V are sequences of consonants and of vowels.
int measure(std::string_view stem) {
  int n = 0;
  bool was_vowel = false;
  for (std::size_t i = 0; i < stem.size(); ++i) {
    // In one pass, since whether a y is a vowel depends only on the preceding letter.
    const bool is_vowel = is_vowel_letter(stem[i]) || (stem[i] == 'y' && i > 0 && !was_vowel);
    if (was_vowel && !is_vowel) ++n;
    was_vowel = is_vowel;
  }
  return n;
}

bool contains_vowel(std::string_view stem) {
  bool was_consonant = false;
  for (const char c : stem) {
    if (is_vowel_letter(c) || (c == 'y' && was_consonant)) return true;
    was_consonant = true;
  }
  return false;
}

bool ends_double_consonant(std::string_view word) {
  return word.size() >= 2 && word.back() == word[word.size() - 2] && is_consonant(word, word.size() - 1);
}

/// o: the stem ends with consonant, vowel, consonant, and the last one is not w, x or y. In NLTK, the stem may also
/// consist of a vowel and a consonant.
bool ends_short(std::string_view word) {
  const std::size_t n = word.size();
  if (n == 2) return !is_consonant(word, 0) && is_consonant(word, 1);
  return n >= 3 && is_consonant(word, n - 3) && !is_consonant(word, n - 2) && is_consonant(word, n - 1) &&
         word.back() != 'w' && word.back() != 'x' && word.back() != 'y';
}

struct Rule {
  std::string_view suffix, replacement;
};

/// Applies the first rule whose suffix the word has: if the measure of the stem before it is greater than `more_than`,
/// the suffix is replaced. Otherwise the word is unchanged.
std::string apply(std::string_view word, std::span<const Rule> rules, int more_than) {
  for (const Rule& rule : rules) {
    if (!word.ends_with(rule.suffix)) continue;
    const std::string_view stem = word.substr(0, word.size() - rule.suffix.size());
    return measure(stem) > more_than ? std::string(stem) + std::string(rule.replacement) : std::string(word);
  }
  return std::string(word);
}

std::string without(std::string_view word, std::size_t n_letters, std::string_view replacement = {}) {
  return std::string(word.substr(0, word.size() - n_letters)) + std::string(replacement);
}

/// Plurals.
std::string step_1a(std::string_view word) {
  if (word.ends_with("ies")) return word.size() == 4 ? without(word, 3, "ie") : without(word, 3, "i");
  if (word.ends_with("sses")) return without(word, 2);
  if (word.ends_with("ss") || !word.ends_with('s')) return std::string(word);
  return without(word, 1);
}

/// -ed and -ing.
std::string step_1b(std::string_view word) {
  if (word.ends_with("ied")) return word.size() == 4 ? without(word, 3, "ie") : without(word, 3, "i");
  if (word.ends_with("eed")) return measure(word.substr(0, word.size() - 3)) > 0 ? without(word, 1) : std::string(word);
  std::string_view stem;
  for (const std::string_view suffix : {"ed", "ing"})
    if (word.ends_with(suffix)) stem = word.substr(0, word.size() - suffix.size());
  if (stem.empty() || !contains_vowel(stem)) return std::string(word);
  if (stem.ends_with("at") || stem.ends_with("bl") || stem.ends_with("iz")) return std::string(stem) + "e";
  const char last = stem.back();
  if (ends_double_consonant(stem)) {
    const bool is_kept = last == 'l' || last == 's' || last == 'z';
    return is_kept ? std::string(stem) : without(stem, 1);
  }
  return measure(stem) == 1 && ends_short(stem) ? std::string(stem) + "e" : std::string(stem);
}

/// In NLTK, -y becomes -i only after a consonant that does not begin the word.
std::string step_1c(std::string_view word) {
  const bool changes = word.size() > 2 && word.ends_with('y') && is_consonant(word, word.size() - 2);
  return changes ? without(word, 1, "i") : std::string(word);
}

std::string step_2(std::string_view word) {
  static constexpr Rule kRules[] = {{"ational", "ate"}, {"tional", "tion"}, {"enci", "ence"},   {"anci", "ance"},
                                    {"izer", "ize"},    {"bli", "ble"},     {"alli", "al"},     {"entli", "ent"},
                                    {"eli", "e"},       {"ousli", "ous"},   {"ization", "ize"}, {"ation", "ate"},
                                    {"ator", "ate"},    {"alism", "al"},    {"iveness", "ive"}, {"fulness", "ful"},
                                    {"ousness", "ous"}, {"aliti", "al"},    {"iviti", "ive"},   {"biliti", "ble"},
                                    {"fulli", "ful"}};
  if (word.ends_with("alli") && measure(word.substr(0, word.size() - 4)) > 0) return step_2(without(word, 2));
  // NLTK counts the l of -logi with the stem, so that short ones such as geo- are enough. No other rule ends like it.
  if (word.ends_with("logi"))
    return measure(word.substr(0, word.size() - 3)) > 0 ? without(word, 1) : std::string(word);
  return apply(word, kRules, 0);
}

std::string step_3(std::string_view word) {
  static constexpr Rule kRules[] = {{"icate", "ic"}, {"ative", ""}, {"alize", "al"}, {"iciti", "ic"},
                                    {"ical", "ic"},  {"ful", ""},   {"ness", ""}};
  return apply(word, kRules, 0);
}

std::string step_4(std::string_view word) {
  static constexpr Rule kRules[] = {{"al", ""},   {"ance", ""}, {"ence", ""},  {"er", ""},   {"ic", ""},  {"able", ""},
                                    {"ible", ""}, {"ant", ""},  {"ement", ""}, {"ment", ""}, {"ent", ""}, {"ou", ""},
                                    {"ism", ""},  {"ate", ""},  {"iti", ""},   {"ous", ""},  {"ive", ""}, {"ize", ""}};
  if (!word.ends_with("ion")) return apply(word, kRules, 1);
  const std::string_view stem = word.substr(0, word.size() - 3);
  const bool is_removed = measure(stem) > 1 && (stem.ends_with('s') || stem.ends_with('t'));
  return std::string(is_removed ? stem : word);
}

std::string step_5a(std::string_view word) {
  if (!word.ends_with('e')) return std::string(word);
  const std::string_view stem = word.substr(0, word.size() - 1);
  const int m = measure(stem);
  return std::string(m > 1 || (m == 1 && !ends_short(stem)) ? stem : word);
}

std::string step_5b(std::string_view word) {
  const bool is_shortened = word.ends_with("ll") && measure(word.substr(0, word.size() - 1)) > 1;
  return is_shortened ? without(word, 1) : std::string(word);
}

/// NLTK's table of irregular forms.
constexpr std::pair<std::string_view, std::string_view> kIrregular[] = {
    {"sky", "sky"},        {"skies", "sky"},       {"dying", "die"},        {"lying", "lie"},
    {"tying", "tie"},      {"news", "news"},       {"innings", "inning"},   {"inning", "inning"},
    {"outings", "outing"}, {"outing", "outing"},   {"cannings", "canning"}, {"canning", "canning"},
    {"howe", "howe"},      {"proceed", "proceed"}, {"exceed", "exceed"},    {"succeed", "succeed"}};

}  // namespace

std::string porter_stem(std::string_view word) {
  for (const auto& [form, stem] : kIrregular)
    if (word == form) return std::string(stem);
  if (word.size() <= 2) return std::string(word);
  return step_5b(step_5a(step_4(step_3(step_2(step_1c(step_1b(step_1a(word))))))));
}

}  // namespace lockstep::text
