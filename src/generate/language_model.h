// What text generation needs from a language model: a KV cache (keys and values) with room for several sequences, and
// the logits for the next tokens. The generator knows nothing else about a model, so tests can pass it an artificial
// one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/ops/sample.h"

namespace lockstep::generate {

/// A token that is added to a sequence. Those of a sequence are added in the order of their positions, from 0 on.
/// Adding a position again replaces it and invalidates all later ones.
struct NewToken {
  std::int32_t id = 0;
  std::int32_t slot = 0;      // of the sequence: 0 to n_slots() - 1
  std::int32_t position = 0;  // 0 to capacity() - 1
  bool wants_logits = false;
};

/// A sequence whose tokens the model draws itself (lockstep/ops/sample.h).
struct DrawnSequence {
  std::int32_t slot = 0;
  std::uint32_t prompt = 0, reply = 0, n_drawn = 0;  // which random number draws the next token
  std::int32_t logits = 0;                           // in prefill: the number of the token of those that want logits
  std::int32_t id = 0, position = 0;                 // in steps: the first token that is added, and where
  std::vector<std::int32_t> occurred{};              // the tokens so far; only needed with a repetition penalty
};

struct Choice {
  std::int32_t id = 0;        // -1: the logits are not finite
  float log_probability = 0;  // in the softmax of the model's logits, before all steps of sampling
};

class LanguageModel {
 public:
  /// Steps that may be queued and not yet read.
  static constexpr int kMostQueued = 4;

  virtual ~LanguageModel() = default;
  virtual std::int64_t n_slots() const = 0;   // sequences that are in the cache at the same time
  virtual std::int64_t capacity() const = 0;  // tokens of each
  virtual std::int64_t vocabulary() const = 0;

  /// Adds any number of prompt tokens, in chunks. At most one token of each slot wants logits. Returns the logits in
  /// the order of those tokens, (n, vocabulary()), valid until the next call.
  virtual std::span<const float> prefill(std::span<const NewToken> tokens) = 0;
  /// Adds at most one token to each sequence, and returns the logits of all, wants_logits or not.
  virtual std::span<const float> decode(std::span<const NewToken> tokens) = 0;
  // The model can draw tokens itself, and add them in the next step, while the host still reads those of earlier steps.

  /// For all tokens that are drawn from now on.
  virtual void set_sampling(const Sample::Settings& settings) = 0;
  /// The same as prefill(), but draws a token for each of these sequences, which are in the order of their logits.
  virtual std::vector<Choice> prefill(std::span<const NewToken> tokens, std::span<const DrawnSequence> drawn) = 0;
  /// The steps that follow add a token to each of these sequences, and draw the next one, until another function
  /// above is called. Steps that were queued and not read are forgotten. A sequence that is full is not changed.
  virtual void begin_steps(std::span<const DrawnSequence> drawn) = 0;
  virtual void queue_step() = 0;
  /// Whether the step that will be read next has run.
  virtual bool has_result() const = 0;
  /// Waits for the oldest step that was queued and not read. The tokens that it drew, in the order of begin_steps(),
  /// are valid until the next call.
  virtual std::span<const Choice> read_step() = 0;

  /// For each slot and position, (n_slots(), capacity()): the slot that holds the key and value of that token, so that
  /// sequences can share their beginnings. Initially, and for added tokens, it is the slot itself. It may be changed
  /// between calls.
  virtual std::span<std::int32_t> cache_indirection() = 0;
};

}  // namespace lockstep::generate
