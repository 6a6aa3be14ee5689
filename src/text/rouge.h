// ROUGE (Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004) of a text against a reference, equal to
// Google's rouge_score: its tokens are the runs of a-z and 0-9 in the lower-case text; everything else separates them.
//   rouge1, rouge2: the words, or pairs of words, that both texts have, each at most as often as the other has it
//   rougeL: the longest common subsequence of words, of the texts as a whole
//   precision = common / of the text,  recall = common / of the reference,  F = 2 P R / (P + R)
// rouge_score's split into lines (rougeLsum) is not computed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

struct RougeScore {
  double precision = 0, recall = 0, f_measure = 0;
};

struct RougeScores {
  RougeScore rouge1, rouge2, rouge_l;
};

/// Whether words of more than 3 letters are replaced by their stems (porter_stemmer.h), as use_stemmer=True.
enum class Stemming : std::uint8_t { none, porter };

RougeScores rouge(std::string_view reference, std::string_view text, Stemming stemming);

/// The words that are compared.
std::vector<std::string> rouge_words(std::string_view text, Stemming stemming);

}  // namespace lockstep::text
