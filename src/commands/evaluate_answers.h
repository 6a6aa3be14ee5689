// The second part of `lockstep evaluate` for conversations: a language model answers the last message of each, and the
// answers are compared with those of the data: ROUGE (text/answer_match.h), and whether they are the same
// (text/answer_match.h). Each rank of a job generates its part of the answers. They do not depend on the number of
// ranks.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/model_file.h"
#include "lockstep/backend.h"
#include "lockstep/communicator.h"
#include "lockstep/config.h"
#include "text/answer_match.h"

namespace lockstep::commands {

struct AnswersArguments {
  bool loss_only = false;
  std::string file{};  // for prompts, answers and references; may be empty
  std::int64_t beams = 1, max_new_tokens = 256;
  std::int64_t batch = 8;  // conversations at the same time
  text::Stemming stemming = text::Stemming::none;
};

/// Whether a data set has answers. False for a set that is not a file or does not exist.
bool has_answers(const std::string& set);

struct AnswersOutcome {
  nlohmann::ordered_json object;  // members for --json
  std::string text;               // a line for a terminal
  std::string lines;              // of the file
};
/// Collective; rank 0 gets the outcome. `config` has the model of `file` and a validation set with answers. Throws
/// data_range if no conversation leaves room for an answer in the context of the model.
AnswersOutcome evaluate_answers(const AnswersArguments& arguments, const Config& config,
                                const checkpoint::ModelFile& file, Backend& backend, World& world);

}  // namespace lockstep::commands
