// The pre-tokenizers of a tokenizer.json, which cut a text into words: Split, Digits and ByteLevel, one after the
// other. Each step cuts the parts of the one before, and sees nothing around them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/pattern.h"

namespace lockstep::text {

/// What happens to the matches. The parts between them are always words.
enum class SplitBehavior : std::uint8_t { isolated, removed };

struct SplitStep {
  Pattern pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // swaps the matches with the parts between them
};

class PreTokenizer {
 public:
  /// `prefixed_from`: the step before which a blank is put before each part that does not begin with one; -1: none.
  explicit PreTokenizer(std::vector<SplitStep> steps = {}, std::ptrdiff_t prefixed_from = -1)
      : steps_(std::move(steps)), prefixed_from_(prefixed_from) {}

  /// Calls `word(part)` for each word that is not empty. Words are parts of the text or of `buffer`, which is
  /// overwritten.
  template <typename OnWord>
  void split(std::string_view text, MatchMemory& memory, std::string& buffer, OnWord word) const {
    split_from(0, text, memory, buffer, word);
  }

 private:
  template <typename OnWord>
  void split_from(std::size_t step, std::string_view text, MatchMemory& memory, std::string& buffer,
                  OnWord& word) const {
    if (std::cmp_equal(step, prefixed_from_) && !text.starts_with(' ')) {
      buffer.assign(1, ' ').append(text);
      text = buffer;
    }
    if (step == steps_.size()) return word(text);
    const SplitStep& split = steps_[step];
    const bool drops_matches = split.behavior == SplitBehavior::removed && !split.invert;
    const bool drops_rest = split.behavior == SplitBehavior::removed && split.invert;
    const auto emit = [&](std::size_t begin, std::size_t end, bool drops) {
      if (begin < end && !drops) split_from(step + 1, text.substr(begin, end - begin), memory, buffer, word);
    };
    std::size_t done = 0;
    while (done < text.size()) {
      const auto match = split.pattern.find(text, done, memory);
      if (!match) break;
      emit(done, match->begin, drops_rest);
      emit(match->begin, match->end, drops_matches);
      done = match->end;
    }
    emit(done, text.size(), drops_rest);
  }

  std::vector<SplitStep> steps_;
  std::ptrdiff_t prefixed_from_;
};

}  // namespace lockstep::text
