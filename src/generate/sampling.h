// How the next token of a text is chosen from the logits of a model. The logits pass through the same steps as in
// Hugging Face's transformers (generation/logits_process.py), in its order:
//   1. repetition penalty r (Keskar et al., "CTRL", 2019): the logit of each token that occurred becomes l / r if it is
//      positive, and l * r otherwise
//   2. temperature t: l / t
//   3. top-k: only the k greatest remain, and those equal to the smallest of them
//   4. top-p (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019): the fewest most probable tokens
//      whose probabilities sum to p or more
//   5. min-p (Nguyen et al., "Turning Up the Heat: Min-p Sampling", 2024): tokens with at least p times the
//      probability of the most probable one
// A token is then drawn with the probabilities of the softmax over what remains. Greedy decoding takes the greatest
// logit after step 1, and of equal ones the first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::generate {

struct SamplingOptions {
  double temperature = 0;         // 0: greedy
  std::int64_t top_k = 0;         // 0: all tokens
  double top_p = 1;               // 1: all tokens
  double min_p = 0;               // 0: all tokens
  double repetition_penalty = 1;  // 1: none

  /// Also if a division by the temperature would overflow.
  bool is_greedy() const { return temperature < 1e-20; }
};

/// Which random number draws a token: key (seed, generate), counter (position, prompt, reply). It does not depend on
/// the batch or the rank that processes the prompt.
struct RandomPlace {
  std::uint32_t seed = 0;
  std::uint32_t prompt = 0;    // its number in the job
  std::uint32_t reply = 0;     // of those to this prompt
  std::uint64_t position = 0;  // in the reply
};

struct Choice {
  std::int32_t id = 0;
  float log_probability = 0;  // in the softmax of the model's logits, before all steps
};

/// Applies step 1 to the logits. `history` may contain a token several times.
void penalize_repetition(std::span<float> logits, std::span<const std::int32_t> history, double penalty);

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options) {}

  /// `history`: the prompt and what was generated. Throws not_supported if there is a NaN in the logits, or nothing
  /// that is finite.
  Choice choose(std::span<const float> logits, std::span<const std::int32_t> history, const RandomPlace& place);
  /// The probabilities from which choose() draws, of all tokens; not with a temperature of 0. Valid until the next
  /// call.
  std::span<const double> probabilities(std::span<const float> logits, std::span<const std::int32_t> history);

 private:
  void keep_top_k();
  void keep_top_p();
  void keep_min_p();
  double to_probabilities();

  SamplingOptions options_;
  std::vector<float> logits_;
  std::vector<double> probabilities_;
  std::vector<std::int32_t> order_;
};

/// The log softmax of the logits. Throws what Sampler::choose() throws.
void log_softmax(std::span<const float> logits, std::span<float> out);

}  // namespace lockstep::generate
