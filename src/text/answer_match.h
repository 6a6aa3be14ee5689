// Whether an answer matches the reference: it has the same text or, if the reference ends with "#### 42" as in GSM8K,
// the same final number.
//
// The final number is what lm-evaluation-harness extracts for gsm8k (lm_eval/tasks/gsm8k/gsm8k.yaml): `strict`, the
// first "#### NUMBER" of the answer; `flexible`, the last number in it. Commas, dollar signs and a full stop at the end
// do not count.
#pragma once

#include <optional>
#include <string>
#include <string_view>

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

}  // namespace lockstep::text
