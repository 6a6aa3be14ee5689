#include "data/answer_end.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::data {

std::optional<std::int32_t> answer_end(const text::ChatTemplate& chat, const text::Tokenizer& tokenizer) {
  const std::string mark = "\uFDD0";  // a noncharacter of Unicode, which no template contains
  const std::vector<text::ChatMessage> messages{{"user", "One"}, {"assistant", mark}, {"user", "Two"}};
  // Some templates end an answer only when another message follows.
  for (const std::size_t n : {2, 3}) {
    const std::string text = chat.render(std::span(messages).first(n), text::ReplyBegin::omit);
    const std::size_t at = text.rfind(mark);
    if (at == std::string::npos) continue;
    std::vector<std::int32_t> ids;
    tokenizer.encode(std::string_view(text).substr(at + mark.size()), ids, text::TemplateTokens::omit);
    const auto end = std::ranges::find_if(ids, [&](std::int32_t id) { return tokenizer.is_added(id); });
    if (end != ids.end()) return *end;
  }
  return std::nullopt;
}

std::optional<std::int32_t> answer_end(const TextDescription& set, const text::Tokenizer& tokenizer) {
  if (set.chat_template.empty()) return std::nullopt;
  try {
    return answer_end(text::ChatTemplate(set.chat_template, set.chat_template_source, set.special_tokens), tokenizer);
  } catch (const Error&) {  // one of another program or release, of which training needs only the tokens
    return std::nullopt;
  }
}

}  // namespace lockstep::data
