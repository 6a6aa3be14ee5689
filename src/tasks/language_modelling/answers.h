// The answers of a language model to the conversations of a data set: it answers the last message of each, and the
// answers are compared with those of the data (text/answer_match.h). `lockstep evaluate` and the evaluations of a
// training (evaluation.answers) both use this, so that they measure the same. Each rank answers its part; the result
// does not depend on the number of ranks.
//
// A file of answers has a line for each conversation: a JSON object with the prompt, the answer, the reference, the
// scores, and a key. The key is the hash of everything on which answers depend: the weights, the data and the settings.
// If it is the right one, the answers are read instead of generated again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "generate/decoder.h"
#include "generate/generator.h"
#include "lockstep/communicator.h"
#include "lockstep/config.h"
#include "models/llama_config.h"
#include "text/answer_match.h"
#include "text/tokenizer.h"

namespace lockstep::tasks {

struct AnswerOptions {
  std::int64_t conversations = 0;  // the first of the set; 0: all
  std::int64_t beams = 1, max_new_tokens = 256;
  std::int64_t batch = 8;  // conversations that a rank answers at the same time
};
/// With evaluation.answers, what it and its other keys say; otherwise the first evaluation.max_samples conversations.
AnswerOptions answer_options(const Config::Evaluation& evaluation);

/// Whether a data set has answers. False for a set that is not a file or does not exist.
bool has_answers(const std::string& set);

/// The scores of one answer.
struct AnswerScores {
  text::RougeScores rouge;
  text::AnswerMatch match;
};

struct Answers {
  std::vector<AnswerScores> scores;  // in the order of the conversations
  std::string lines;                 // of a file
  std::int64_t n_tokens = 0;         // generated ones

  /// The mean of what `of` returns for the scores of an answer.
  double mean(double (*of)(const AnswerScores&)) const;
};

/// The measures of evaluations in a training.
struct AnswerMeasure {
  const char* key;
  double (*of)(const AnswerScores&);
};
inline constexpr AnswerMeasure kRougeL{"rouge_l", [](const AnswerScores& s) { return s.rouge.rouge_l.f_measure; }};
inline constexpr AnswerMeasure kExactMatch{"exact_match", [](const AnswerScores& s) { return s.match.is_exact * 1.0; }};

/// The conversations to answer.
class Questions {
 public:
  /// Throws data_range if no conversation leaves room for an answer in the context of the model, and usage if too many
  /// sequences would be generated at the same time.
  Questions(const std::string& set, const models::LlamaConfig& model, const AnswerOptions& options);

  std::int64_t n_left_out() const { return n_left_out_; }  // conversations whose prompts fill the context of the model
  /// Of the decoder that generates the answers. It is independent of the ranks.
  generate::DecoderSizes decoder_sizes() const;

  /// `weights`: their hash; empty: unknown, and then the key is empty too. `base`: the hash of the base of adapters, or
  /// empty. `model`: Task::model_stamp() as text.
  std::string key(const std::string& weights, const std::string& base, const std::string& model,
                  Precision precision) const;
  /// Collective. The answers in the file `path`, if it exists on rank 0 and has the right key.
  std::optional<Answers> read(const std::string& path, const std::string& key, text::Stemming stemming,
                              World& world) const;
  /// Collective: all ranks get all answers. Throws StoppedBySignal on all ranks after a signal.
  Answers generate(generate::Decoder& decoder, const std::string& key, text::Stemming stemming, bool shows_progress,
                   World& world) const;

 private:
  void add(Answers& answers, std::size_t question, const std::string& answer, std::int64_t n_tokens,
           const std::string& key, text::Stemming stemming) const;

  AnswerOptions options_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::vector<generate::Prompt> prompts_;
  std::vector<std::vector<std::int32_t>> references_;  // without the token that ends them
  std::vector<std::int32_t> end_tokens_;
  std::string data_hash_;
  std::int64_t n_left_out_ = 0, positions_ = 0;
  std::int64_t n_asked_ = 0;  // conversations, with those that are left out
  std::int64_t longest_ = 0;  // tokens of a prompt
};

}  // namespace lockstep::tasks
