// lockstep evaluate --choices: how often a language model finds the right choice more probable than the others, as
// lm-evaluation-harness measures it for multiple-choice tasks.
//   acc        the choice with the greatest log probability is right
//   acc_norm   the same, where the log probability of a choice is divided by its length in bytes
// The harness's acc_norm divides by the length in characters, and its acc_bytes by that in bytes. All three are in the
// JSON object. They differ only where choices have characters outside of ASCII.
#pragma once

#include <string>

#include "commands/commands.h"
#include "commands/generate_model.h"

namespace lockstep::commands {

struct ChoicesArguments {
  ModelRequest model{};
  std::string choices{}, answers{}, json{};  // files; `answers` and `json` may be empty
};

/// Collective over the ranks of the job; each computes its part of the questions, and rank 0 reports.
int evaluate_choices(const ChoicesArguments& arguments, const Arguments& program);

}  // namespace lockstep::commands
