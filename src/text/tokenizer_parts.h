// What the readers of tokenizer files give to a Tokenizer: its pre-tokenizer, and its other parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/added_tokens.h"
#include "text/byte_pair_encoding.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pattern.h"

namespace lockstep::text {

/// What happens to the matches. The parts between them are always words. merged_with_previous: a match belongs to the
/// word before it, unless that ends in a match.
enum class SplitBehavior : std::uint8_t { isolated, removed, merged_with_previous };

struct SplitStep {
  Pattern pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // swaps the matches with the parts between them
};

/// Cuts a text into words: Split, Digits and ByteLevel of a tokenizer.json, one after the other. Each step cuts the
/// parts of the one before, and sees nothing around them.
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
    std::size_t begun = 0, ended = 0;  // the newest word, which a match may still be merged with
    bool was_match = true;
    const auto emit = [&] {
      if (begun < ended) split_from(step + 1, text.substr(begun, ended - begun), memory, buffer, word);
    };
    const auto add = [&](std::size_t begin, std::size_t end, bool is_match) {
      if (begin == end) return;
      const bool merges = split.behavior == SplitBehavior::merged_with_previous && is_match && !was_match;
      if (!merges) {
        emit();
        begun = is_match && split.behavior == SplitBehavior::removed ? end : begin;
      }
      ended = end;
      was_match = is_match;
    };
    std::size_t done = 0;
    while (done < text.size()) {
      const auto match = split.pattern.find(text, done, memory);
      if (!match) break;
      add(done, match->begin, split.invert);
      add(match->begin, match->end, !split.invert);
      done = match->end;
    }
    add(done, text.size(), split.invert);
    emit();
  }

  std::vector<SplitStep> steps_;
  std::ptrdiff_t prefixed_from_;
};

struct TokenizerParts {
  /// The tokens by id, as the decoder takes them. Nothing: no token has this id.
  std::vector<std::optional<std::string>> tokens;
  std::vector<AddedToken> added_tokens;             // found before the normaliser
  std::vector<AddedToken> normalized_added_tokens;  // found after it
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BytePairModel model;
  Decoder decoder;
  std::vector<std::int32_t> prefix, suffix;  // what the template puts before and after each text
  std::optional<std::int32_t> begin_token, end_token;
  /// Everything that the ids of a text depend on, for the hash.
  std::string canonical;
};

/// No tokenizer has this many tokens; it bounds the memory that a damaged file can request.
inline constexpr std::int32_t kMaxVocabulary = 1 << 24;

/// A file in memory. The name is for messages.
struct NamedContent {
  std::string name, content;
};

inline constexpr std::uint64_t kMaxTokenizerBytes = 64 << 20;

/// Reads a tokenizer.json of Hugging Face's library `tokenizers`: byte pair encoding on bytes or with byte fallback.
/// `config`: the tokenizer_config.json that belongs to it, which names the tokens for the begin and the end of a text.
/// Throws model_file_damaged, and model_feature if the file needs something else.
TokenizerParts read_tokenizer_json(const NamedContent& file, const std::optional<NamedContent>& config);

/// Reads a tokenizer.bin of karpathy's llama2.c: the length of the longest token (int32), then of each token the score
/// (float32), the length (int32) and the bytes. The neighbours with the highest score are merged first. Token 1 begins
/// a text, token 2 ends it, and the 256 tokens from 3 on are bytes. Throws model_file_damaged.
TokenizerParts read_llama2c_tokenizer(const NamedContent& file);

}  // namespace lockstep::text
