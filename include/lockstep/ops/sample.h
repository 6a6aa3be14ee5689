// Draws the next token of each of several sequences from the logits of a language model. The logits l pass through the
// same steps as in Hugging Face's transformers (generation/logits_process.py), in its order:
//   1. repetition penalty r (Keskar et al., "CTRL", 2019): the logit of each token that occurred becomes l / r if it is
//      positive, and l * r otherwise
//   2. temperature t: l / t
//   3. top-k: only the k greatest remain, and those equal to the smallest of them
//   4. top-p (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019): the least probable tokens are
//      removed as long as their probabilities sum to at most 1 - p; of equal ones the first
//   5. min-p (Nguyen et al., "Turning Up the Heat: Min-p Sampling", 2024): tokens with at least p times the
//      probability of the most probable one
// A token is then drawn with the probabilities of the softmax over what remains. Greedy decoding takes the greatest
// logit after step 1, and of equal ones the first.
//
// Probabilities are fixed-point numbers (weight_of). Their sums do not depend on the order of the terms, so every
// backend draws the same tokens from the same logits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "lockstep/error.h"
#include "lockstep/host_device.h"
#include "lockstep/op.h"
#include "lockstep/philox.h"

namespace lockstep {

struct SamplingOptions {
  double temperature = 0;         // 0: greedy
  std::int64_t top_k = 0;         // 0: all tokens
  double top_p = 1;               // 1: all tokens
  double min_p = 0;               // 0: all tokens
  double repetition_penalty = 1;  // 1: none

  /// Also if a division by the temperature would overflow.
  LOCKSTEP_HOST_DEVICE bool is_greedy() const { return temperature < 1e-20; }
};

/// What the op knows of a sequence. The random number that draws a token has the key (seed, generate) and the counter
/// (position, prompt, reply), so it does not depend on the batch or the rank that processes the prompt.
struct SampledSequence {
  std::int32_t row = -1;       // of the logits; -1: nothing is drawn
  std::uint32_t prompt = 0;    // its number in the job
  std::uint32_t reply = 0;     // of those to this prompt
  std::uint32_t position = 0;  // of the token in the reply; each draw adds one
  std::int32_t id = 0;         // drawn; -1: there is a NaN in the logits, or nothing that is finite
  float log_probability = 0;   // of the token, in the softmax of the logits before all steps
  std::uint32_t scratch = 0;   // zero between calls
};

struct SampleDescription {
  using Op = class Sample;
  static constexpr std::string_view kName = "sample";
  static constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 20;

  std::int64_t sequences = 0;
  std::int64_t vocabulary = 0;

  /// 32-bit words with a bit for each token.
  LOCKSTEP_HOST_DEVICE std::int64_t occurred_words() const { return (vocabulary + 31) / 32; }
};

inline void require_possible(const SampleDescription& d) {
  require(d.sequences > 0 && d.vocabulary > 0 && d.vocabulary <= SampleDescription::kMaxVocabulary,
          ErrorCode::op_description,
          "tokens of {} sequences, drawn from {}: both must be positive, the second below {}", d.sequences,
          d.vocabulary, SampleDescription::kMaxVocabulary);
}

struct SampleCalls {
  struct Settings {
    SamplingOptions options;
    std::uint32_t seed = 0;
  };
  struct Forward {
    const float* logits = nullptr;  // (rows, vocabulary)
    const Settings* settings = nullptr;
    SampledSequence* sequences = nullptr;  // (sequences), updated
    /// (sequences, occurred_words()): which tokens occurred. Only used with a repetition penalty; drawn ones are added.
    std::uint32_t* occurred = nullptr;
    // (sequences), of sequences that draw, if not null: the token becomes the id, and the position is increased by one.
    std::int32_t* ids = nullptr;
    std::int32_t* positions = nullptr;
  };
};

class Sample : public ForwardOp<SampleDescription, SampleCalls> {};

/// The arithmetic of the op.
namespace sampling {

constexpr int kWeightBits = 42;

/// exp(x) * 2^kWeightBits for x <= 0, rounded down, in integers, so that every device computes the same bits. The
/// relative error is below 2e-7 where the result exceeds 2^23.
LOCKSTEP_HOST_DEVICE inline std::uint64_t weight_of(float x) {
  constexpr float kLeast = -29.5f;
  if (!(x > kLeast)) return 0;
  const auto u = static_cast<std::uint64_t>(-x * 4294967296.0f);  // 32 bits after the point
  const std::uint64_t exponent = (u * 48408813u) >> 25;           // times log2(e)
  const auto f = static_cast<std::uint32_t>(exponent);            // 2^-f by its Taylor series
  const auto times_f = [f](std::uint32_t c) { return static_cast<std::uint32_t>((std::uint64_t{c} * f) >> 32); };
  std::uint32_t sum = 437u - times_f(30u);  // ln(2)^k / k! * 2^32, k = 9 and 10
  sum = 5676u - times_f(sum);
  sum = 65510u - times_f(sum);
  sum = 661577u - times_f(sum);
  sum = 5726720u - times_f(sum);
  sum = 41309550u - times_f(sum);
  sum = 238388332u - times_f(sum);
  sum = 1031764991u - times_f(sum);
  sum = 2977044472u - times_f(sum);
  const std::uint64_t power = (std::uint64_t{1} << 32) - ((std::uint64_t{sum} * f) >> 32);
  return (power << (kWeightBits - 32)) >> (exponent >> 32);
}

/// Integers in the order of the numbers.
LOCKSTEP_HOST_DEVICE inline std::uint32_t ordered(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x == 0 ? 0.0f : x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
LOCKSTEP_HOST_DEVICE inline float from_ordered(std::uint32_t key) {
  return std::bit_cast<float>(key >> 31 ? key & 0x7fffffffu : ~key);
}

/// The logits of a sequence after steps 1 and 2.
struct Logits {
  const float* logits;
  const std::uint32_t* occurred;  // null without a penalty
  float penalty, temperature;     // greedy: a temperature of 1

  LOCKSTEP_HOST_DEVICE Logits(const Sample::Forward& args, const SampleDescription& d, std::int64_t sequence)
      : logits(args.logits + args.sequences[sequence].row * d.vocabulary),
        occurred(args.settings->options.repetition_penalty == 1 ? nullptr
                                                                : args.occurred + sequence * d.occurred_words()),
        penalty(static_cast<float>(args.settings->options.repetition_penalty)),
        temperature(args.settings->options.is_greedy() ? 1.0f
                                                       : static_cast<float>(args.settings->options.temperature)) {}
  LOCKSTEP_HOST_DEVICE float operator[](std::int64_t i) const {
    float l = logits[i];
    if (occurred != nullptr && (occurred[i / 32] >> (i % 32) & 1) != 0) l = l < 0 ? l * penalty : l / penalty;
    return l / temperature;
  }
  /// Greatest for the greatest logit, and for the first of equal ones.
  LOCKSTEP_HOST_DEVICE std::uint64_t rank(std::int64_t i) const {
    return std::uint64_t{ordered((*this)[i])} << 32 | (0xffffffffu - static_cast<std::uint32_t>(i));
  }
  LOCKSTEP_HOST_DEVICE static std::int32_t token_of(std::uint64_t rank) {
    return static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(rank));
  }
};

/// Which tokens remain: those whose order (ordered(logit), number) is at least `least`, and that have `least_weight`.
struct Kept {
  std::uint64_t least = 0;
  std::uint64_t least_weight = 1;
};
constexpr int kNumberBits = 20;  // kMaxVocabulary
LOCKSTEP_HOST_DEVICE inline std::uint64_t order_of(float logit, std::int64_t i) {
  return std::uint64_t{ordered(logit)} << kNumberBits | static_cast<std::uint64_t>(i);
}

/// Steps 3 to 5, and the draw. select(key_of, bits, weigh, goal) returns the smallest key, a number of `bits` bits, for
/// which the weights of the tokens with smaller and equal keys sum to more than goal(sum of all weights). `greatest`:
/// of the logits.
template <typename Select>
LOCKSTEP_HOST_DEVICE std::int32_t draw(const SamplingOptions& o, const Logits& logits, float greatest,
                                       std::int64_t vocabulary, double uniform, const Select& select) {
  Kept kept;
  if (o.top_k > 0 && o.top_k < vocabulary) {
    const auto skipped = static_cast<std::uint64_t>(vocabulary - o.top_k);
    kept.least = select([&](std::int64_t i) { return std::uint64_t{ordered(logits[i])}; }, 32,
                        [](std::int64_t) { return std::uint64_t{1}; }, [&](std::uint64_t) { return skipped; })
                 << kNumberBits;
  }
  const auto weigh = [&](std::int64_t i) {
    const float l = logits[i];
    if (order_of(l, i) < kept.least) return std::uint64_t{0};  // first, since an exponential takes longer
    const std::uint64_t weight = weight_of(l - greatest);
    return weight >= kept.least_weight ? weight : 0;
  };
  if (o.top_p < 1)
    kept.least = select([&](std::int64_t i) { return order_of(logits[i], i); }, 32 + kNumberBits, weigh,
                        [&](std::uint64_t total) {
                          const auto removed = static_cast<std::uint64_t>((1 - o.top_p) * static_cast<double>(total));
                          return removed < total ? removed : total - 1;
                        });
  if (o.min_p > 0) {
    const double least = o.min_p * static_cast<double>(std::uint64_t{1} << kWeightBits);
    kept.least_weight = static_cast<std::uint64_t>(least);
    if (kept.least_weight == 0 || static_cast<double>(kept.least_weight) < least) ++kept.least_weight;
  }
  return static_cast<std::int32_t>(
      select([](std::int64_t i) { return static_cast<std::uint64_t>(i); }, kNumberBits, weigh,
             [&](std::uint64_t total) {
               const auto drawn = static_cast<std::uint64_t>(uniform * static_cast<double>(total));
               return drawn < total ? drawn : total - 1;
             }));
}

LOCKSTEP_HOST_DEVICE inline double uniform_of(const SampledSequence& s, std::uint32_t seed) {
  const Philox random(seed, RandomPurpose::generate, s.prompt, s.reply);
  return Philox::uniform(random.block(s.position), 0);
}

/// What each backend does with a token that is drawn. `normalizer`: the logarithm of the sum of the exponentials.
LOCKSTEP_HOST_DEVICE inline void finish(const Sample::Forward& args, const SampleDescription& d, std::int64_t sequence,
                                        std::int32_t id, double normalizer) {
  SampledSequence& s = args.sequences[sequence];
  s.id = id;
  s.scratch = 0;
  if (id < 0) return;
  s.log_probability = static_cast<float>(double{args.logits[s.row * d.vocabulary + id]} - normalizer);
  ++s.position;
  if (args.settings->options.repetition_penalty != 1)
    args.occurred[sequence * d.occurred_words() + id / 32] |= 1u << (id % 32);
  if (args.ids != nullptr) args.ids[sequence] = id;
  if (args.positions != nullptr) ++args.positions[sequence];
}

}  // namespace sampling

}  // namespace lockstep
