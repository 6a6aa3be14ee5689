// How well an answer matches its reference: whether it has the same text or the same final number, and ROUGE.
//
// If the reference ends with "#### 42" as in GSM8K, the final numbers are compared. They are what lm-evaluation-harness
// extracts for gsm8k (lm_eval/tasks/gsm8k/gsm8k.yaml): `strict`, the first "#### NUMBER" of the answer; `flexible`, the
// last number in it. Commas, dollar signs and a full stop at the end do not count.
//
// ROUGE (Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004) of a text against a reference, equal to
// Google's rouge_score: its tokens are the runs of a-z and 0-9 in the lower-case text; everything else separates them.
//   rouge1, rouge2: the words, or pairs of words, that both texts have, each at most as often as the other has it
//   rougeL: the longest common subsequence of words, of the texts as a whole
//   precision = common / of the text,  recall = common / of the reference,  F = 2 P R / (P + R)
// rouge_score's split into lines (rougeLsum) is not computed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

/// The number after the last "#### " of a reference; no value if there is none.
std::optional<std::string> final_number(std::string_view reference);

struct AnswerMatch {
  bool has_final_number = false;  // of the reference
  bool is_exact = false;          // has_final_number: the numbers are the same (strict); else the texts, but for white
                                  // space at both ends
  bool is_flexible = false;       // has_final_number: the last number of the answer is that of the reference
};
AnswerMatch match_answer(std::string_view reference, std::string_view answer);

struct RougeScore {
  double precision = 0, recall = 0, f_measure = 0;
};

struct RougeScores {
  RougeScore rouge1, rouge2, rouge_l;
};

/// Whether words of more than 3 letters are replaced by their stems, as use_stemmer=True.
enum class Stemming : std::uint8_t { none, porter };

RougeScores rouge(std::string_view reference, std::string_view text, Stemming stemming);

/// The words that are compared.
std::vector<std::string> rouge_words(std::string_view text, Stemming stemming);

/// The stem by the Porter stemmer ("An algorithm for suffix stripping", Program 14, 1980) with the extensions of NLTK's
/// PorterStemmer (nltk/stem/porter.py, its default mode), which Google's rouge_score uses: the same stem for every word
/// of a-z and 0-9. A digit counts as a consonant. `word`: lower-case letters and digits only.
std::string porter_stem(std::string_view word);

}  // namespace lockstep::text
