// An artificial language model for tests: the logits of the next token are a function of the whole sequence, which the
// model reads back from its cache through the indirection. An error in slots, positions or the indirection changes the
// tokens.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "generate/language_model.h"
#include "lockstep/backend.h"
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

  void set_sampling(const Sample::Settings& settings) override { settings_ = settings; }
  std::vector<Choice> prefill(std::span<const NewToken> tokens, std::span<const DrawnSequence> drawn) override {
    n_prefilled += tokens.size();
    add(tokens, false);
    stepping_.assign(drawn.begin(), drawn.end());
    return draw();
  }
  void begin_steps(std::span<const DrawnSequence> drawn) override {
    stepping_.assign(drawn.begin(), drawn.end());
    queued_.clear();
  }
  void queue_step() override {
    EXPECT_LT(queued_.size(), std::size_t{kMostQueued});
    ++n_steps;
    std::vector<NewToken> tokens;
    for (DrawnSequence& sequence : stepping_) {
      sequence.logits = static_cast<std::int32_t>(tokens.size());
      if (sequence.position < capacity_)
        tokens.push_back({.id = sequence.id, .slot = sequence.slot, .position = sequence.position});
      else
        sequence.logits = -1;
      ++sequence.position;
    }
    add(tokens, true);
    queued_.push_back(draw());
  }
  bool has_result() const override { return !is_slow && !queued_.empty(); }
  std::span<const Choice> read_step() override {
    read_ = queued_.front();
    queued_.pop_front();
    return read_;
  }

  std::size_t n_prefilled = 0, n_steps = 0;
  bool is_slow = false;  // no step has run until its result is read

 private:
  /// From `logits_`, for `stepping_`.
  std::vector<Choice> draw() {
    const SampleDescription d{.sequences = std::ssize(stepping_), .vocabulary = vocabulary_};
    std::vector<SampledSequence> sequences;
    std::vector<std::uint32_t> occurred(static_cast<std::size_t>(d.sequences * d.occurred_words()));
    std::vector<std::int32_t> ids(stepping_.size());
    for (std::size_t i = 0; i < stepping_.size(); ++i) {
      DrawnSequence& s = stepping_[i];
      sequences.push_back({.row = s.logits, .prompt = s.prompt, .reply = s.reply, .position = s.n_drawn++});
      for (const std::int32_t id : s.occurred)
        occurred[i * static_cast<std::size_t>(d.occurred_words()) + static_cast<std::size_t>(id / 32)] |= 1u
                                                                                                          << (id % 32);
    }
    const auto stream = backend_->make_stream();
    backend_->make(d)->forward({.logits = logits_.data(),
                                .settings = &settings_,
                                .sequences = sequences.data(),
                                .occurred = occurred.data(),
                                .ids = ids.data()},
                               {}, *stream);
    std::vector<Choice> choices;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      choices.push_back({sequences[i].id, sequences[i].log_probability});
      stepping_[i].id = ids[i];
      stepping_[i].occurred.push_back(ids[i]);
    }
    return choices;
  }
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
  std::unique_ptr<Backend> backend_ = make_backend({.device = "cpu", .threads = 1});
  Sample::Settings settings_;
  std::vector<DrawnSequence> stepping_;
  std::deque<std::vector<Choice>> queued_;
  std::vector<Choice> read_;
};

}  // namespace lockstep::generate
