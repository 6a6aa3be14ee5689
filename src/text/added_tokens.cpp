#include "text/added_tokens.h"

#include <utility>

#include "base/utf8.h"
#include "lockstep/error.h"

namespace lockstep::text {
namespace {

bool is_of_word(std::string_view code_point, MatchMemory& memory) {
  static const Pattern pattern("\\w", "added_tokens");
  return pattern.find(code_point, 0, memory).has_value();
}

bool is_blank(std::string_view code_point, MatchMemory& memory) {
  static const Pattern pattern("\\s", "added_tokens");
  return pattern.find(code_point, 0, memory).has_value();
}

}  // namespace

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
  while (true) {
    const Match match = this->match(text, from);
    if (match.token == nullptr) return false;
    std::size_t begin = match.begin, end = match.begin + match.n_bytes;
    from = end;
    const AddedToken& token = *match.token;
    if (token.single_word) {
      const auto is_word = [&](std::size_t first, std::size_t last) {
        return is_of_word(text.substr(first, last - first), memory);
      };
      if (begin > 0 && is_word(begin_of_last(text, begin), begin)) continue;
      if (end < text.size() && is_word(end, end + n_bytes_of(text[end]))) continue;
    }
    const auto is_space = [&](std::size_t first, std::size_t last) {
      return is_blank(text.substr(first, last - first), memory);
    };
    if (token.strip_left) {
      while (begin > done && is_space(begin_of_last(text, begin), begin)) begin = begin_of_last(text, begin);
    }
    if (token.strip_right) {
      while (end < text.size() && is_space(end, end + n_bytes_of(text[end]))) end += n_bytes_of(text[end]);
    }
    found = {begin, end, token.id};
    return true;
  }
}

}  // namespace lockstep::text
