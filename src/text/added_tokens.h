// Tokens that are found in the text before anything else is done with it (`added_tokens` of a tokenizer.json), such as
// <|endoftext|>. If several tokens match, the one that begins first is taken, and among those the longest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/pattern.h"

namespace lockstep::text {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;       // what is searched for
  bool single_word = false;  // only where no letter or digit is next to it
  bool strip_left = false;   // includes the white space before it
  bool strip_right = false;  // includes the white space after it
  bool is_special = false;   // is part of a format, not of what a user reads
};

class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Found {
    std::size_t begin = 0, end = 0;  // bytes
    std::int32_t id = 0;
  };
  bool empty() const { return tokens_.empty(); }
  /// Calls `token(id)` for each token that is found in the text, and `between(part)` for each part between them that is
  /// not empty, from left to right. The text must be valid UTF-8.
  template <typename OnToken, typename OnText>
  void split(std::string_view text, MatchMemory& memory, OnToken token, OnText between) const {
    std::size_t done = 0, from = 0;
    Found found;
    while (next(text, from, done, found, memory)) {
      if (done < found.begin) between(text.substr(done, found.begin - done));
      token(found.id);
      done = found.end;
    }
    if (done < text.size()) between(text.substr(done));
  }

 private:
  struct Match {
    std::size_t begin = 0, n_bytes = 0;
    const AddedToken* token = nullptr;
  };
  /// The next token after `from`, which is moved to its end. `done`: the end of the last token with its white space.
  bool next(std::string_view text, std::size_t& from, std::size_t done, Found& found, MatchMemory& memory) const;
  Match match(std::string_view text, std::size_t from) const;

  std::vector<AddedToken> tokens_;
  /// A trie: node 0 is the root, and the key is node << 8 | byte.
  std::unordered_map<std::uint64_t, std::uint32_t> children_;
  std::vector<std::int32_t> token_of_node_;  // -1: none ends here
  std::array<bool, 256> is_first_byte_{};
};

}  // namespace lockstep::text
