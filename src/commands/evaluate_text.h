// The parts of `lockstep evaluate` for language models that need more than the loss. Each rank of a job has its part of
// the conversations or questions; the results do not depend on the number of ranks.
//
// Conversations: the answers of the model are compared with those of the data
// (tasks/language_modelling/answers.h).
//
// --choices: how often the model finds the right choice more probable than the others, as lm-evaluation-harness
// measures it for multiple-choice tasks.
//   acc        the choice with the greatest log probability is right
//   acc_norm   the same, where the log probability of a choice is divided by its length in bytes
// The harness's acc_norm divides by the length in characters, and its acc_bytes by that in bytes. All three are in the
// JSON object. They differ only where choices have characters outside of ASCII.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/model_file.h"
#include "commands/commands.h"
#include "commands/model_argument.h"
#include "lockstep/backend.h"
#include "lockstep/communicator.h"
#include "lockstep/config.h"
#include "tasks/language_modelling/answers.h"

namespace lockstep::commands {

struct AnswersArguments {
  bool loss_only = false;
  std::string file{};                          // for prompts, answers and references; may be empty
  std::int64_t beams = 0, max_new_tokens = 0;  // 0: as the configuration says (tasks::answer_options())
  std::int64_t batch = tasks::AnswerOptions{}.batch;
  text::Stemming stemming = text::Stemming::none;
};

/// The model whose answers are evaluated.
struct EvaluatedModel {
  const checkpoint::ModelFile& file;
  std::string weights_hash, base_hash, stamp;  // tasks::Questions::key()
  std::string known_answers;                   // a file in which its answers may be; may be empty
};

struct AnswersOutcome {
  nlohmann::ordered_json object;  // members for --json
  std::string text;               // a line for a terminal
  std::string lines;              // of the file
};
/// Collective. `config` has the model and a validation set with answers. If the file of --answers, or the known one,
/// has the answers already, they are read. Throws what tasks::Questions throws.
AnswersOutcome evaluate_answers(const AnswersArguments& arguments, const Config& config, const EvaluatedModel& model,
                                Backend& backend, World& world);

struct EvaluateArguments {
  ModelRequest model{};
  std::string json{}, confusion{}, choices{};  // files; may be empty
  AnswersArguments answers{};
  std::string about_answers{};  // the given option, if any, that only applies to answers to conversations
};

/// With --choices: starts MPI; rank 0 reports.
int evaluate_choices(const EvaluateArguments& arguments, const Arguments& program);

}  // namespace lockstep::commands
