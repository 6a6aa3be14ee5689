// What generating text needs of a language model: a cache of keys and values with room for several sequences, and the
// logits of the tokens that follow. The generator knows nothing else of a model, so tests can give it an artificial
// one.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::generate {

/// A token that is added to a sequence. Those of a sequence are added in the order of their positions, from 0 on. A
/// position that is added again, with all after it, replaces what was there.
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

  /// Adds tokens of prompts, any number of them, in chunks. Of each slot at most one wants logits. Returns them in the
  /// order of the tokens that do, (n, vocabulary()), valid until the next call.
  virtual std::span<const float> prefill(std::span<const NewToken> tokens) = 0;
  /// Adds at most one token to each sequence, and returns the logits of all, wants_logits or not.
  virtual std::span<const float> decode(std::span<const NewToken> tokens) = 0;
  /// For each slot and position, (n_slots(), capacity()), the slot in which key and value of that token are: sequences
  /// can share their beginnings. At first, and for what is added, a slot's own. It may be changed between calls.
  virtual std::span<std::int32_t> cache_indirection() = 0;
};

}  // namespace lockstep::generate
