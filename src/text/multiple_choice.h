// Questions of multiple choice, one per line of a JSONL file, and how they become texts, exactly as
// lm-evaluation-harness does it (lm_eval/tasks/{hellaswag,arc,piqa}; api/model.py, TemplateLM._encode_pair).
//
// A line is {"context": "...", "choices": ["...", ...], "answer": 0}, or as the data sets have it:
//   HellaSwag  activity_label, ctx_a and ctx_b (or ctx), endings, label
//   ARC        question, choices {text, label} (or question {stem, choices [{text, label}]}), answerKey
//   PIQA       goal, sol1, sol2, label
// Further members are ignored.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace lockstep::text {

struct ChoiceQuestion {
  std::string context;               // "Question: ...\nAnswer:"
  std::vector<std::string> choices;  // without the space that comes before each
  std::size_t answer = 0;            // which of them is right
};

/// `place` begins messages: "line 3 of questions.jsonl". Throws data_source with what was expected.
ChoiceQuestion parse_choice_question(std::string_view line, const std::string& place);

/// A choice after its context: the tokens of the context, and then the tokens of "CONTEXT CHOICE" after that many.
struct ChoiceTokens {
  std::vector<std::int32_t> ids;
  std::size_t first = 0;  // of the choice; 0: there is no context, and no token that begins or ends a text
};
/// White space at the end of the context counts with the choice. If nothing else is left, the context is the token that
/// begins a text, or else the one that ends it.
ChoiceTokens encode_choice(const Tokenizer& tokenizer, std::string_view context, std::string_view choice);

}  // namespace lockstep::text
