#include "text/added_tokens.h"

#include <utility>

#include "base/utf8.h"
#include "lockstep/error.h"

namespace lockstep::text {
AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), token_of_node_{-1} {
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    const std::string& content = tokens_[t].content;
    require(!content.empty(), ErrorCode::internal, "an added token is empty");
    is_first_byte_[static_cast<unsigned char>(content[0])] = true;
    std::uint32_t node = 0;
    for (const char c : content) {
      const std::uint64_t key = std::uint64_t{node} << 8 | static_cast<unsigned char>(c);
      const auto [child, is_new] = children_.try_emplace(key, static_cast<std::uint32_t>(token_of_node_.size()));
      if (is_new) token_of_node_.push_back(-1);
      node = child->second;
    }
    require(token_of_node_[node] < 0, ErrorCode::model_file_damaged, "the added token {} occurs twice", content);
    token_of_node_[node] = static_cast<std::int32_t>(t);
  }
}

AddedTokens::Match AddedTokens::match(std::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!is_first_byte_[static_cast<unsigned char>(text[begin])]) continue;
    Match longest;
    std::uint32_t node = 0;
    for (std::size_t i = begin; i < text.size(); ++i) {
      const auto child = children_.find(std::uint64_t{node} << 8 | static_cast<unsigned char>(text[i]));
      if (child == children_.end()) break;
      node = child->second;
      if (token_of_node_[node] >= 0)
        longest = {begin, i + 1 - begin, &tokens_[static_cast<std::size_t>(token_of_node_[node])]};
    }
    if (longest.token != nullptr) return longest;
  }
  return {};
}

bool AddedTokens::next(std::string_view text, std::size_t& from, std::size_t done, Found& found,
                       MatchMemory& memory) const {
  if (tokens_.empty()) return false;
  static const Pattern word("\\w", "added_tokens"), blank("\\s", "added_tokens");
  const auto is = [&](const Pattern& kind, std::size_t first, std::size_t last) {
    return kind.find(text.substr(first, last - first), 0, memory).has_value();
  };
  while (true) {
    const Match match = this->match(text, from);
    if (match.token == nullptr) return false;
    std::size_t begin = match.begin, end = match.begin + match.n_bytes;
    from = end;
    const AddedToken& token = *match.token;
    if (token.single_word) {
      if (begin > 0 && is(word, begin_of_last(text, begin), begin)) continue;
      if (end < text.size() && is(word, end, end + n_bytes_of(text[end]))) continue;
    }
    if (token.strip_left) {
      while (begin > done && is(blank, begin_of_last(text, begin), begin)) begin = begin_of_last(text, begin);
    }
    if (token.strip_right) {
      while (end < text.size() && is(blank, end, end + n_bytes_of(text[end]))) end += n_bytes_of(text[end]);
    }
    found = {begin, end, token.id};
    return true;
  }
}

}  // namespace lockstep::text
