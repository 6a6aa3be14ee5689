// Encodes conversations as ids, with the positions of what the assistant says. The text is that of the chat template
// (chat_template.h), encoded as a whole, as apply_chat_template() of transformers does it.
//
// An answer is what a template marks with {% generation %}: every token that contains a part of it, as with
// return_assistant_tokens_mask of transformers.
//
// In a template without {% generation %}, an answer is everything that a model has to generate in its turn: from the
// end of the generation prompt, such as "<|im_start|>assistant\n", to the token that ends the turn, such as <|im_end|>.
// If the template ends turns without a token of its own, an answer ends with what the assistant says. To find the
// answers in the text, the conversation is rendered a second time with marks in place of what the assistant says. The
// text around the marks must recur in the first one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace lockstep::text {

struct EncodedConversation {
  std::vector<std::int32_t> ids;
  std::vector<std::pair<std::size_t, std::size_t>> answers;  // ranges [begin, end) of ids, ascending
};

/// Throws chat_template if what looks like a token in the template, such as <|im_start|>, is not one token of the
/// tokenizer: the models for which the template is made have learnt it as one token.
void require_tokens(const ChatTemplate& chat, const Tokenizer& tokenizer);

/// The first added token that the template writes after an answer, such as <|im_end|>; none if it has no token of its
/// own for that. A model that has learnt it ends its own answers with it. Throws what ChatTemplate::render() throws.
std::optional<std::int32_t> answer_end(const ChatTemplate& chat, const Tokenizer& tokenizer);

/// Both must outlive it. All functions are thread-safe.
class ConversationEncoder {
 public:
  /// Throws what require_tokens() throws.
  ConversationEncoder(const ChatTemplate& chat, const Tokenizer& tokenizer);

  /// Throws chat_template if the answers cannot be found in the text or the template has no place for a field, and what
  /// ChatTemplate::render() throws. `variables`: those of Chat.
  EncodedConversation encode(std::span<const ChatMessage> messages, const jinja::Value& variables = nullptr) const;

 private:
  using Part = std::pair<std::size_t, std::size_t>;  // bytes [begin, end) of a text
  /// One per message of the assistant.
  std::vector<Part> find_answers(std::span<const ChatMessage> messages, const jinja::Value& variables,
                                 const std::string& text) const;

  const ChatTemplate& chat_;
  const Tokenizer& tokenizer_;
  std::string generation_prompt_;
  std::string lead_;      // white space that begins answers, if there is no generation prompt
  std::string end_text_;  // the token that ends answers; empty: the template has none of its own
};

}  // namespace lockstep::text
