// What text generation needs from a language model: a KV cache (keys and values) with room for several sequences, and
// the logits for the next tokens. The generator knows nothing else about a model, so tests can pass it an artificial
// one.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::generate {

/// A token that is added to a sequence. Those of a sequence are added in the order of their positions, from 0 on.
/// Adding a position again replaces it and invalidates all later ones.
struct NewToken {
  std::int32_t id = 0;
  std::int32_t slot = 0;      // of the sequence: 0 to n_slots() - 1
  std::int32_t position = 0;  // 0 to capacity() - 1
  bool wants_logits = false;
};

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  virtual std::int64_t n_slots() const = 0;   // sequences that are in the cache at the same time
  virtual std::int64_t capacity() const = 0;  // tokens of each
  virtual std::int64_t vocabulary() const = 0;

  /// Adds any number of prompt tokens, in chunks. At most one token of each slot wants logits. Returns the logits in
  /// the order of those tokens, (n, vocabulary()), valid until the next call.
  virtual std::span<const float> prefill(std::span<const NewToken> tokens) = 0;
  /// Adds at most one token to each sequence, and returns the logits of all, wants_logits or not.
  virtual std::span<const float> decode(std::span<const NewToken> tokens) = 0;
  /// For each slot and position, (n_slots(), capacity()): the slot that holds the key and value of that token, so that
  /// sequences can share their beginnings. Initially, and for added tokens, it is the slot itself. It may be changed
  /// between calls.
  virtual std::span<std::int32_t> cache_indirection() = 0;
};

}  // namespace lockstep::generate
