#include "data/answer_end.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>

namespace lockstep::data {

std::optional<std::int32_t> answer_end(const Conversations& set, const text::Tokenizer& tokenizer) {
  constexpr std::int64_t kConversations = 64;
  std::map<std::int32_t, int> counts;
  int n = 0;
  for (std::int64_t i = 0; i < std::min(kConversations, set.n_conversations()); ++i) {
    const Conversation conversation = set.read(i);
    for (const auto& [begin, end] : conversation.answers) {
      ++counts[conversation.tokens[static_cast<std::size_t>(end - 1)]];
      ++n;
    }
  }
  const auto most = std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; });
  if (most == counts.end() || 2 * most->second <= n) return std::nullopt;
  const std::string text = tokenizer.decode(std::span(&most->first, 1));
  return text.find_first_not_of(" \t\r\n") == std::string::npos ? std::nullopt : std::optional(most->first);
}

}  // namespace lockstep::data
