#include "text/conversation_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include "lockstep/error.h"

namespace lockstep::text {
namespace {

constexpr std::string_view kBlanks = " \t\r\n\f\v";
/// At the end of a text, fewer tokens than this depend on the text that follows.
constexpr std::size_t kMaxOpenTokens = 8;

bool is_assistant(const ChatMessage& message) { return message.role == "assistant"; }

/// Marks consist of Unicode noncharacters, which no text contains.
constexpr std::string_view kMarkEnd = "\uFDD1";
std::string mark_of(std::size_t answer) { return fmt::format("\uFDD0{}", answer) + std::string(kMarkEnd); }

/// Puts the mark in place of each text in a value, except for those that templates compare.
void put_mark(jinja::Value& value, const std::string& mark) {
  if (value.is_string()) value = mark;
  if (!value.is_structured()) return;
  for (const auto& [key, item] : value.items())
    if (key != "id" && key != "type") put_mark(item, mark);
}

/// The message with a mark in place of each text that the assistant generates.
ChatMessage marked(ChatMessage message, const std::string& mark) {
  message.content = mark;
  for (const char* name : {"content", "reasoning_content", "thinking", "reasoning", "tool_calls"})
    if (message.fields.contains(name)) put_mark(message.fields[name], mark);
  return message;
}

/// Throws unless the template uses the fields that a model has to learn from.
void require_fields(const ChatTemplate& chat, std::span<const ChatMessage> messages, const jinja::Value& variables) {
  const auto require_use = [&](const jinja::Value& of, const char* name, const char* other_name) {
    const bool is_given = of.contains(name) && !of[name].empty() && of[name] != "";
    require(
        !is_given || chat.text().find(name) != std::string::npos || chat.text().find(other_name) != std::string::npos,
        ErrorCode::chat_template,
        "the chat template {} does not use \"{}\": choose a template that does, or remove this field from the data",
        chat.source(), name);
  };
  require_use(variables, "tools", "tools");
  for (const ChatMessage& message : messages) {
    require_use(message.fields, "tool_calls", "tool_calls");
    require_use(message.fields, "reasoning_content", "thinking");
  }
}

std::string_view trimmed(std::string_view text) { return jinja::stripped(text, true, true, kBlanks); }

/// Finds tokens of `ids` by bytes of the text. Searches begin at token `from_`, which begins at byte `from_byte_`, and
/// which is an added token or the first one.
class TokenFinder {
 public:
  TokenFinder(const Tokenizer& tokenizer, std::string_view text, std::span<const std::int32_t> ids)
      : tokenizer_(tokenizer), text_(text), ids_(ids) {}

  struct Place {
    std::size_t token = kNone;  // the first one that contains text from the byte on
    bool begins = true;         // whether it begins there
    std::size_t end() const { return begins ? token : token + 1; }
  };
  /// `byte` must not decrease from call to call.
  Place at(std::size_t byte) {
    Place place = find(byte);
    if (place.token == kNone &&
        from_ > 0) {  // encoded alone, the text from there on has other tokens than in the whole
      from_ = from_byte_ = 0;
      place = find(byte);
    }
    require(place.token != kNone, ErrorCode::chat_template,
            "the tokenizer {} encodes the beginning of a conversation differently alone than within the whole: use "
            "another tokenizer",
            tokenizer_.path());
    return place;
  }
  /// Later searches begin at token `from`, which begins at this byte. It must be an added token, so that preceding text
  /// does not change the tokens from there on.
  void begin_again(std::size_t from, std::size_t byte) { from_ = from, from_byte_ = byte; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  Place find(std::size_t byte) {
    part_.clear();
    tokenizer_.encode(text_.substr(from_byte_, byte - from_byte_), part_, TemplateTokens::omit);
    const auto rest = ids_.subspan(from_);
    const auto same = static_cast<std::size_t>(std::ranges::mismatch(part_, rest).in1 - part_.begin());
    const auto open = std::span(part_).subspan(same);
    if (open.empty()) return {.token = from_ + same};
    if (open.size() > kMaxOpenTokens) return {};
    // Within the whole, the text of `open` can have other tokens, and the last of them can extend beyond it.
    const std::string open_text = tokenizer_.decode(open);
    Place place{.token = from_ + same, .begins = open_text.empty()};
    for (std::size_t n = 1; n <= std::min(2 * kMaxOpenTokens, rest.size() - same); ++n)
      if (const std::string before = tokenizer_.decode(rest.subspan(same, n)); open_text.starts_with(before))
        place = {.token = from_ + same + n, .begins = before.size() == open_text.size()};
    return place;
  }

  const Tokenizer& tokenizer_;
  std::string_view text_;
  std::span<const std::int32_t> ids_;
  std::size_t from_ = 0, from_byte_ = 0;
  std::vector<std::int32_t> part_;
};

std::array<ChatMessage, 4> sample_conversation() {
  return {ChatMessage{"user", "One"}, ChatMessage{"assistant", "Two"}, ChatMessage{"user", "Three"},
          ChatMessage{"assistant", "Four"}};
}

/// The text that the template writes before an answer; empty if it does not define one.
std::string generation_prompt_of(const ChatTemplate& chat) {
  const std::array question{sample_conversation().front()};
  const std::string without = chat.render(question, ReplyBegin::omit), with = chat.render(question, ReplyBegin::add);
  return with.starts_with(without) ? with.substr(without.size()) : "";
}

}  // namespace

void require_tokens(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  const std::string text = chat.render(sample_conversation(), ReplyBegin::omit) + generation_prompt_of(chat);
  for (std::size_t begin = text.find("<|"); begin != std::string::npos; begin = text.find("<|", begin + 1)) {
    const std::size_t end = text.find("|>", begin + 2);
    if (end == std::string::npos) return;
    const std::string token = text.substr(begin, end + 2 - begin);
    if (token.find_first_of(kBlanks) != std::string::npos) continue;
    std::vector<std::int32_t> ids;
    tokenizer.encode(token, ids, TemplateTokens::omit);
    require(ids.size() == 1, ErrorCode::chat_template,
            "the chat template {} uses {}, which is not one token of the tokenizer {}, but {}: choose the template of "
            "this tokenizer, or the tokenizer of the model that has this template",
            chat.source(), token, tokenizer.path(), ids.size());
  }
}

std::optional<std::int32_t> answer_end(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  const std::string mark = "\uFDD0";  // a noncharacter of Unicode, which no template contains
  const std::vector<ChatMessage> messages{{"user", "One"}, {"assistant", mark}, {"user", "Two"}};
  // Some templates end an answer only when another message follows.
  for (const std::size_t n : {2, 3}) {
    const std::string text = chat.render(std::span(messages).first(n), ReplyBegin::omit);
    const std::size_t at = text.rfind(mark);
    if (at == std::string::npos) continue;
    std::vector<std::int32_t> ids;
    tokenizer.encode(std::string_view(text).substr(at + mark.size()), ids, TemplateTokens::omit);
    const auto end = std::ranges::find_if(ids, [&](std::int32_t id) { return tokenizer.is_added(id); });
    if (end != ids.end()) return *end;
  }
  return std::nullopt;
}

ConversationEncoder::ConversationEncoder(const ChatTemplate& chat, const Tokenizer& tokenizer)
    : chat_(chat), tokenizer_(tokenizer), generation_prompt_(generation_prompt_of(chat)) {
  require_tokens(chat, tokenizer);
  std::array sample = sample_conversation();
  sample.back().content = mark_of(0);
  const std::string text = chat.render(sample, ReplyBegin::omit);
  if (const std::size_t at = text.find(sample.back().content); at != std::string::npos && !chat.marks_answers()) {
    const std::string before = chat.render(std::span(sample).first<3>(), ReplyBegin::omit);
    if (text.starts_with(before) && at > before.size() && text.find_first_not_of(' ', before.size()) == at)
      lead_ = text.substr(before.size(), at - before.size());
    std::vector<std::int32_t> after;  // the first added token ends the answer
    tokenizer_.encode(std::string_view(text).substr(at + sample.back().content.size()), after, TemplateTokens::omit);
    const auto first = std::ranges::find_if(after, [&](std::int32_t id) { return tokenizer_.is_added(id); });
    if (first != after.end()) end_text_ = tokenizer_.decode(std::span(&*first, 1));
  }
  static_cast<void>(encode(sample_conversation()));  // throws if it cannot find the answers
}

std::vector<ConversationEncoder::Part> ConversationEncoder::find_answers(std::span<const ChatMessage> messages,
                                                                         const jinja::Value& variables,
                                                                         const std::string& text) const {
  std::vector<ChatMessage> all(messages.begin(), messages.end());
  std::vector<const ChatMessage*> answers;
  for (const ChatMessage& message : messages)
    if (is_assistant(message)) {
      all[static_cast<std::size_t>(&message - messages.data())] = marked(message, mark_of(answers.size()));
      answers.push_back(&message);
    }
  if (answers.empty()) return {};
  const std::string frame = chat_.render(all, variables).text;
  const auto check = [&](bool good, std::size_t answer) {
    require(good, ErrorCode::chat_template,
            "the chat template {} does not show where answer {} of a conversation is in its text: choose another "
            "template with --template, for example chatml",
            chat_.source(), answer + 1);
  };

  // The text between two marks ends with the generation prompt. If the template writes something after that, such as an
  // empty block of reasoning, it belongs to the answer, and can be different in the text.
  std::vector<std::string> between, leads;
  std::string_view rest = frame;
  for (std::size_t a = 0; a < answers.size(); ++a) {
    const std::string mark = mark_of(a);
    const std::size_t found = rest.find(mark);
    check(found != std::string_view::npos, a);
    const std::string_view before = rest.substr(0, found);
    const std::size_t prompt = generation_prompt_.empty() ? before.npos : before.rfind(generation_prompt_);
    const std::size_t begin = prompt != before.npos ? prompt + generation_prompt_.size()
                                                    : before.size() - (before.ends_with(lead_) ? lead_.size() : 0);
    between.emplace_back(before.substr(0, begin));
    leads.emplace_back(before.substr(begin));
    rest.remove_prefix(rest.rfind(mark) + mark.size());
  }
  between.emplace_back(rest);

  check(text.starts_with(between.front()), 0);
  std::vector<Part> parts;
  std::size_t at = between.front().size();
  for (std::size_t a = 0; a < answers.size(); ++a) {
    const std::string& next = between[a + 1];
    const bool is_last = a + 1 == answers.size();
    std::size_t end = std::string::npos;
    for (const std::string_view answer : {std::string_view(answers[a]->content), trimmed(answers[a]->content)}) {
      const std::string whole = leads[a] + std::string(answer);
      const auto from = std::string_view(text).substr(at);
      if (end == std::string::npos && from.starts_with(whole) && from.substr(whole.size()).starts_with(next))
        end = at + whole.size();
    }
    if (is_last) end = text.size() >= at + next.size() && text.ends_with(next) ? text.size() - next.size() : text.npos;
    if (end == std::string::npos) end = text.find(next, at);
    check(end != std::string::npos, a);
    const std::size_t closing = end_text_.empty() ? next.npos : next.find(end_text_);
    parts.emplace_back(at, closing == next.npos ? end : end + closing + end_text_.size());
    at = end + next.size();
  }
  return parts;
}

EncodedConversation ConversationEncoder::encode(std::span<const ChatMessage> messages,
                                                const jinja::Value& variables) const {
  require_fields(chat_, messages, variables);
  auto [text, parts] = chat_.render(messages, variables);
  if (!chat_.marks_answers()) parts = find_answers(messages, variables, text);
  std::vector<bool> is_trained;
  for (const ChatMessage& message : messages)
    if (is_assistant(message)) is_trained.push_back(message.is_trained);
  const bool trains_all = std::ranges::all_of(is_trained, std::identity());
  require(trains_all || parts.size() == is_trained.size(), ErrorCode::chat_template,
          "the chat template {} has {} blocks of {{% generation %}} for {} turns of the assistant, so that no turn can "
          "be left out: remove \"train\" and \"weight\", or mark each turn once",
          chat_.source(), parts.size(), is_trained.size());
  EncodedConversation out;
  tokenizer_.encode(text, out.ids, TemplateTokens::omit);
  TokenFinder finder(tokenizer_, text, out.ids);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto [begin_byte, end_byte] = parts[i];
    const std::size_t begin = finder.at(begin_byte).token;
    const std::size_t end = std::min(finder.at(end_byte).end(), out.ids.size());
    if (end > 0 && tokenizer_.is_added(out.ids[end - 1]))
      if (const std::string last = tokenizer_.decode(std::span(out.ids).subspan(end - 1, 1));
          std::string_view(text).substr(0, end_byte).ends_with(last))
        finder.begin_again(end - 1, end_byte - last.size());
    if (!trains_all && !is_trained[i]) continue;
    if (begin >= end) continue;
    if (!out.answers.empty() && begin <= out.answers.back().second)
      out.answers.back().second = std::max(end, out.answers.back().second);
    else
      out.answers.emplace_back(begin, end);
  }
  return out;
}

}  // namespace lockstep::text
