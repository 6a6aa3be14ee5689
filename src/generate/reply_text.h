// The text of a reply while its tokens arrive: whole characters only, and nothing that may still turn out to be the
// beginning of a stop word.
//
// The text of a token depends on those before it (a decoder may strip a leading space, and a character may consist of
// several tokens), so the end of the tokens is decoded with and without the new one, as vLLM does
// (vllm/transformers_utils/detokenizer_utils.py). A text that ends with U+FFFD may end with an incomplete character,
// and is held back.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::generate {

/// The text of tokens, special ones included; those that the tokenizer does not have are left out.
using Decode = std::function<std::string(std::span<const std::int32_t>)>;

class ReplyText {
 public:
  /// `prompt`: its last tokens are the context of the first tokens of the reply.
  ReplyText(Decode decode, std::span<const std::int32_t> prompt, std::vector<std::string> stop_words);

  /// Returns what can be shown now. After a stop word has occurred, nothing.
  std::string add(std::int32_t token);
  /// Returns what was held back; to be called when no token follows.
  std::string finish();
  /// A stop word has occurred. The text ends before it.
  bool is_stopped() const { return is_stopped_; }
  /// All that add() and finish() have returned.
  const std::string& text() const { return text_; }

 private:
  std::string release(std::string_view decoded, bool is_last);

  Decode decode_;
  std::vector<std::string> stop_words_;
  std::vector<std::int32_t> tokens_;     // the context, and those of the reply
  std::size_t begin_ = 0, decoded_ = 0;  // tokens from begin_ are decoded; the text of those before decoded_ is known
  std::string held_, text_;
  bool is_stopped_ = false;
};

}  // namespace lockstep::generate
