// Chat templates: how the messages of a conversation become one text, exactly as apply_chat_template() of Hugging
// Face's transformers does it (utils/chat_template_utils.py). A template is a program in Jinja (jinja.h), which
// tokenizer_config.json or chat_template.jinja contains. The built-in ones are `chatml` (OpenAI's format, also Qwen2's
// without a default system message) and `llama3` (Meta's, as Llama 3 Instruct has it).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja.h"

namespace lockstep::text {

struct ChatMessage {
  std::string role;  // such as "system", "user", "assistant" and "tool"
  std::string content;
  jinja::Value fields{};   // all fields, such as tool_calls, these two included; null: there are no others
  bool is_trained = true;  // whether what the assistant says here counts towards the loss
};

/// The fields of a message as transformers gives them to a template: without those that are null, and with reasoning
/// under the names that templates use.
jinja::Value message_fields(const jinja::Value& message);

struct Chat {
  std::vector<ChatMessage> messages{};
  jinja::Value variables{};  // for the template, such as tools; null: none
};

/// Whether the text ends with the beginning of a reply, which a model then continues.
enum class ReplyBegin : std::uint8_t { add, omit };

class ChatTemplate {
 public:
  /// `source` names the template in messages. `variables`: such as bos_token and eos_token. Throws
  /// chat_template if it is not a template, or uses something that is not supported.
  ChatTemplate(std::string_view jinja, std::string source, std::map<std::string, std::string> variables = {});

  /// The built-in template of this name; null if there is none.
  static std::unique_ptr<ChatTemplate> preset(std::string_view name, std::map<std::string, std::string> variables = {});
  /// The template of the tokenizer in a folder; null if it has none. `name` selects one if tokenizer_config.json lists
  /// several.
  static std::unique_ptr<ChatTemplate> open(const std::string& folder, std::string_view name = "default");

  /// The template that an option such as --template selects: the name of a built-in one, a file, or "auto" for that of
  /// the tokenizer in `folder`. `option`, `tokenizer`: their names in messages. Throws usage if there is none.
  static ChatTemplate choose(const std::string& choice, const std::string& folder, const std::string& option,
                             const std::string& tokenizer);

  /// Throws chat_template with the template's own words if it refuses the messages, for example because of their order.
  std::string render(std::span<const ChatMessage> messages, ReplyBegin reply_begin) const;
  /// A whole conversation, with the places of {% generation %}.
  jinja::Rendering render(std::span<const ChatMessage> messages, const jinja::Value& variables,
                          ReplyBegin reply_begin = ReplyBegin::omit) const;
  /// Whether the template marks what the assistant says with {% generation %}.
  bool marks_answers() const;
  const std::string& source() const { return source_; }
  /// The template itself, and the texts of bos_token and so on.
  const std::string& text() const { return text_; }
  const std::map<std::string, std::string>& variables() const { return variables_; }

 private:
  std::string source_, text_;
  std::map<std::string, std::string> variables_;
  std::vector<jinja::Statement> statements_;
};

/// bos_token, eos_token and so on of a tokenizer_config.json in this folder; empty if there is none.
std::map<std::string, std::string> special_tokens_of(const std::string& folder);

}  // namespace lockstep::text
