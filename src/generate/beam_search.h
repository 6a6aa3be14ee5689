// Beam search for the reply to one prompt. It does the same as Hugging Face's transformers (generation/utils.py,
// GenerationMixin._beam_search, with early_stopping=False), so that its replies are the same token for token:
//   - A beam's score is the sum of the log probabilities of its tokens. Each step keeps the best max(2, 1 + end tokens)
//     * beams continuations of all beams. Those that end compete for the replies, if they are among the best `beams`;
//     the best of the others become the beams of the next step.
//   - A reply of n tokens has the score divided by n^length_penalty. The search ends when the best beam, divided in the
//     same way, is not better than the worst of the replies, or at max_new_tokens.
// All scores are fp32, as in transformers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace lockstep::generate {

struct BeamOptions {
  std::int64_t beams = 1;
  double length_penalty = 1;  // above 0 prefers longer replies
  double repetition_penalty = 1;
  std::int64_t max_new_tokens = 0;
  std::vector<std::int32_t> end_tokens{};
};

struct Hypothesis {
  std::vector<std::int32_t> tokens;  // of the reply
  std::vector<float> log_probabilities;
  float score = 0;  // with the length penalty if it is a reply
  bool is_finished = false;
};

class BeamSearch {
 public:
  /// `stops`: whether these tokens of a reply contain a stop word; null: there are none.
  BeamSearch(const BeamOptions& options, std::span<const std::int32_t> prompt,
             std::function<bool(std::span<const std::int32_t>)> stops = nullptr);

  /// Where a beam of the next step comes from.
  struct Move {
    std::int32_t parent = 0;  // a beam of this step
    std::int32_t token = 0;
  };
  /// `logits`: of each beam, (beams, vocabulary). In the first step all are those of the prompt. Returns the beams of
  /// the next step; empty: the search has ended.
  std::vector<Move> step(std::span<const float> logits);
  /// The replies, the best one first: as many as there are beams, if that many were found.
  std::vector<Hypothesis> replies() const;

 private:
  struct Candidate {
    std::int32_t parent = 0, token = 0;
    float score = 0, log_probability = 0;
    bool ends = false;
  };
  std::vector<Candidate> best_candidates(std::span<const float> logits);
  void take_replies(const std::vector<Candidate>& candidates);
  bool can_improve() const;
  float with_length_penalty(float score, std::int64_t length) const;

  BeamOptions options_;
  std::vector<std::int32_t> prompt_;
  std::function<bool(std::span<const std::int32_t>)> stops_;
  std::vector<Hypothesis> beams_, replies_;
  std::int64_t length_ = 0;  // tokens of each beam
  bool may_improve_ = true;
  std::vector<float> log_probabilities_, scores_;
};

}  // namespace lockstep::generate
