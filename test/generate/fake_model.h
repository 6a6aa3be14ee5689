// An artificial language model for tests: the logits of the next token are a function of the whole sequence, which the
// model reads back from its cache through the indirection. An error in slots, positions or the indirection changes the
// tokens.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "generate/language_model.h"
#include "lockstep/philox.h"

namespace lockstep::generate {

/// The logits after these tokens. They are the same wherever they are computed.
inline std::vector<float> logits_after(std::span<const std::int32_t> tokens, std::int64_t vocabulary) {
  std::uint32_t state = 17;
  for (const std::int32_t token : tokens) state = state * 1664525u + static_cast<std::uint32_t>(token) + 1013904223u;
  const Philox random(state, RandomPurpose::synthetic, 0, 0);
  std::vector<float> out;
  for (std::int64_t i = 0; i < vocabulary; ++i)
    out.push_back(static_cast<float>(random.normal(static_cast<std::uint64_t>(i))));
  return out;
}

class FakeModel final : public LanguageModel {
 public:
  FakeModel(std::int64_t slots, std::int64_t capacity, std::int64_t vocabulary)
      : slots_(slots),
        capacity_(capacity),
        vocabulary_(vocabulary),
        cache_(static_cast<std::size_t>(slots * capacity), -1) {
    for (std::int64_t slot = 0; slot < slots; ++slot)
      cache_indirection_.insert(cache_indirection_.end(), static_cast<std::size_t>(capacity),
                                static_cast<std::int32_t>(slot));
  }
  std::int64_t n_slots() const override { return slots_; }
  std::int64_t capacity() const override { return capacity_; }
  std::int64_t vocabulary() const override { return vocabulary_; }
  std::span<std::int32_t> cache_indirection() override { return cache_indirection_; }
  std::span<const float> prefill(std::span<const NewToken> tokens) override {
    n_prefilled += tokens.size();
    return add(tokens, false);
  }
  std::span<const float> decode(std::span<const NewToken> tokens) override {
    ++n_steps;
    EXPECT_LE(std::ssize(tokens), slots_);
    return add(tokens, true);
  }

  std::size_t n_prefilled = 0, n_steps = 0;

 private:
  std::size_t at(std::int64_t slot, std::int64_t position) const {
    EXPECT_TRUE(slot >= 0 && slot < slots_ && position >= 0 && position < capacity_) << slot << ", " << position;
    return static_cast<std::size_t>(slot * capacity_ + position);
  }
  std::span<const float> add(std::span<const NewToken> tokens, bool all_want_logits) {
    logits_.clear();
    for (const NewToken& token : tokens) {
      cache_[at(token.slot, token.position)] = token.id;
      cache_indirection_[at(token.slot, token.position)] = token.slot;
    }
    for (const NewToken& token : tokens) {
      if (!all_want_logits && !token.wants_logits) continue;
      std::vector<std::int32_t> sequence;
      for (std::int64_t p = 0; p <= token.position; ++p)
        sequence.push_back(cache_[at(cache_indirection_[at(token.slot, p)], p)]);
      const std::vector<float> row = logits_after(sequence, vocabulary_);
      logits_.insert(logits_.end(), row.begin(), row.end());
    }
    return logits_;
  }

  std::int64_t slots_, capacity_, vocabulary_;
  std::vector<std::int32_t> cache_, cache_indirection_;
  std::vector<float> logits_;
};

}  // namespace lockstep::generate
