#include "text/conversation_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "lockstep/error.h"

namespace lockstep::text {
namespace {

constexpr std::string_view kBlanks = " \t\r\n\f\v";
/// At the end of a text, fewer tokens than this depend on the text that follows.
constexpr std::size_t kMaxOpenTokens = 8;

bool is_assistant(const ChatMessage& message) { return message.role == "assistant"; }

/// Marks consist of Unicode noncharacters, which no text contains.
std::string mark_of(std::size_t number) { return fmt::format("\uFDD0{}\uFDD1", number); }

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

/// Finds the first token of `ids` that contains text from a given byte on. Searches begin at token `from_`, which
/// begins at byte `from_byte_`, and which is an added token or the first one.
class TokenFinder {
 public:
  TokenFinder(const Tokenizer& tokenizer, std::string_view text, std::span<const std::int32_t> ids)
      : tokenizer_(tokenizer), text_(text), ids_(ids) {}

  /// `byte` must not decrease from call to call.
  std::size_t at(std::size_t byte) {
    std::size_t token = find(byte);
    if (token == kNone && from_ > 0) {  // encoded alone, the text from there on has other tokens than within the whole
      from_ = from_byte_ = 0;
      token = find(byte);
    }
    require(token != kNone, ErrorCode::chat_template,
            "the tokenizer {} encodes the beginning of a conversation differently alone than within the whole: use "
            "another tokenizer",
            tokenizer_.path());
    return token;
  }
  /// Later searches begin at token `from`, which begins at this byte. It must be an added token, so that preceding text
  /// does not change the tokens from there on.
  void begin_again(std::size_t from, std::size_t byte) { from_ = from, from_byte_ = byte; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  std::size_t find(std::size_t byte) {
    part_.clear();
    tokenizer_.encode(text_.substr(from_byte_, byte - from_byte_), part_, TemplateTokens::omit);
    const auto rest = ids_.subspan(from_);
    const auto same = static_cast<std::size_t>(std::ranges::mismatch(part_, rest).in1 - part_.begin());
    const auto open = std::span(part_).subspan(same);
    if (open.empty()) return from_ + same;
    if (open.size() > kMaxOpenTokens) return kNone;
    // Within the whole, the text of `open` can have other tokens, and the last of them can extend beyond it.
    const std::string open_text = tokenizer_.decode(open);
    std::size_t n_before = 0;
    for (std::size_t n = 1; n <= std::min(2 * kMaxOpenTokens, rest.size() - same); ++n)
      if (open_text.starts_with(tokenizer_.decode(rest.subspan(same, n)))) n_before = n;
    return from_ + same + n_before;
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

ConversationEncoder::ConversationEncoder(const ChatTemplate& chat, const Tokenizer& tokenizer)
    : chat_(chat), tokenizer_(tokenizer), generation_prompt_(generation_prompt_of(chat)) {
  require_tokens(chat, tokenizer);
  const EncodedConversation encoded = encode(sample_conversation());
  const std::int32_t last = encoded.ids[encoded.answers.front().second - 1];
  if (tokenizer_.is_added(last)) end_token_ = last;
}

std::vector<ConversationEncoder::Part> ConversationEncoder::find_answers(std::span<const ChatMessage> messages,
                                                                         const std::string& text) const {
  std::vector<ChatMessage> marked(messages.begin(), messages.end());
  std::vector<std::string_view> answers;
  for (ChatMessage& message : marked)
    if (is_assistant(message)) {
      message.content = mark_of(answers.size());
      answers.push_back(messages[static_cast<std::size_t>(&message - marked.data())].content);
    }
  if (answers.empty()) return {};
  const std::string frame = chat_.render(marked, ReplyBegin::omit);
  const auto check = [&](bool good, std::size_t answer) {
    require(good, ErrorCode::chat_template,
            "the chat template {} does not show where answer {} of a conversation is in its text: choose another "
            "template with --template, for example chatml",
            chat_.source(), answer + 1);
  };

  // The text between two marks ends with the generation prompt. If the template writes something after that, such as an
  // empty block of reasoning, it belongs to the answer, and can be different in the text.
  std::vector<std::string> between;
  std::string_view rest = frame;
  for (std::size_t a = 0; a < answers.size(); ++a) {
    const std::string mark = mark_of(a);
    const std::size_t found = rest.find(mark);
    check(found != std::string_view::npos, a);
    std::string_view before = rest.substr(0, found);
    if (const std::size_t prompt = before.rfind(generation_prompt_); prompt != std::string_view::npos)
      before = before.substr(0, prompt + generation_prompt_.size());
    between.emplace_back(before);
    rest.remove_prefix(found + mark.size());
  }
  between.emplace_back(rest);

  check(text.starts_with(between.front()), 0);
  std::vector<Part> parts;
  std::size_t at = between.front().size();
  for (std::size_t a = 0; a < answers.size(); ++a) {
    const std::string& next = between[a + 1];
    const bool is_last = a + 1 == answers.size();
    std::size_t end = std::string::npos;
    for (const std::string_view answer : {answers[a], trimmed(answers[a])}) {
      const auto from = std::string_view(text).substr(at);
      if (end == std::string::npos && from.starts_with(answer) && from.substr(answer.size()).starts_with(next))
        end = at + answer.size();
    }
    if (is_last) end = text.size() >= at + next.size() && text.ends_with(next) ? text.size() - next.size() : text.npos;
    if (end == std::string::npos) end = text.find(next, at);
    check(end != std::string::npos, a);
    parts.push_back({at, end});
    at = end + next.size();
  }
  return parts;
}

EncodedConversation ConversationEncoder::encode(std::span<const ChatMessage> messages) const {
  const std::string text = chat_.render(messages, ReplyBegin::omit);
  const std::vector<Part> parts = find_answers(messages, text);
  EncodedConversation out;
  tokenizer_.encode(text, out.ids, TemplateTokens::omit);
  TokenFinder finder(tokenizer_, text, out.ids);
  for (const Part& part : parts) {
    std::size_t begin = finder.at(part.begin);
    // There may be white space before the end token.
    const std::size_t end_byte = std::min(text.find_first_not_of(kBlanks, part.end), text.size());
    std::size_t end = finder.at(end_byte);
    if (end < out.ids.size() && tokenizer_.is_added(out.ids[end])) {
      finder.begin_again(end, end_byte);
      ++end;
    } else if (part.end < text.size()) {
      end = finder.at(part.end) + 1;
    }
    end = std::min(end, out.ids.size());
    if (!out.answers.empty()) begin = std::max(begin, out.answers.back().second);
    if (begin < end) out.answers.emplace_back(begin, end);
  }
  return out;
}

}  // namespace lockstep::text
