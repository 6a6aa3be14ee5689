// Byte pair encoding, compared with its definition, with random merges.
#include "text/byte_pair_encoding.h"

#include <gtest/gtest.h>

#include "test/text/golden.h"

namespace lockstep::text {
namespace {

/// Merges the pair with the lowest rank, and the leftmost among equal ones, until there is none.
std::vector<std::int32_t> reference(std::vector<std::int32_t> ids, const std::vector<Merge>& merges) {
  while (true) {
    const Merge* best = nullptr;
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i)
      for (const Merge& merge : merges)
        if (merge.left == ids[i] && merge.right == ids[i + 1] && (best == nullptr || merge.rank < best->rank)) {
          best = &merge;
          place = i;
        }
    if (best == nullptr) return ids;
    ids[place] = best->result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

/// Tokens for the letters a to d, and merges of random pairs of existing tokens.
BytePairModel random_model(std::uint64_t seed, SymbolKind symbols, bool has_equal_ranks) {
  BytePairModel model;
  model.symbols = symbols;
  std::vector<std::string> tokens;
  for (const char letter : {'a', 'b', 'c', 'd'}) {
    model.ids.emplace(std::string(1, letter), static_cast<std::int32_t>(tokens.size()));
    tokens.emplace_back(1, letter);
  }
  for (std::uint64_t i = 0; i < 30; ++i) {
    const auto random = golden::random(seed, i);
    const std::int32_t left = static_cast<std::int32_t>(random[0] % tokens.size());
    const std::int32_t right = static_cast<std::int32_t>(random[1] % tokens.size());
    const std::string joined = tokens[static_cast<std::size_t>(left)] + tokens[static_cast<std::size_t>(right)];
    bool is_known = false;
    for (const Merge& merge : model.merges) is_known = is_known || (merge.left == left && merge.right == right);
    if (is_known || joined.size() > 12) continue;
    const auto [found, is_new] = model.ids.emplace(joined, static_cast<std::int32_t>(tokens.size()));
    if (is_new) tokens.push_back(joined);
    // As in llama2.c, where a rank belongs to the resulting token.
    const auto rank = has_equal_ranks ? static_cast<std::uint32_t>(found->second / 3) : static_cast<std::uint32_t>(i);
    model.merges.push_back({left, right, found->second, rank});
  }
  return model;
}

class RandomMerges : public testing::TestWithParam<std::tuple<SymbolKind, bool>> {};

TEST_P(RandomMerges, AreDoneInOrder) {
  const auto [symbols, has_equal_ranks] = GetParam();
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const BytePairModel model = random_model(seed, symbols, has_equal_ranks);
    const BytePairEncoding encoding(model);
    MergeMemory memory;
    for (std::uint64_t text = 0; text < 20; ++text) {
      // Lengths above and below the limits for the special algorithm and for the cache.
      const std::size_t n = golden::random(seed, 1000 + text)[0] % 100;
      std::string word;
      std::vector<std::int32_t> letters;
      for (std::size_t i = 0; i < n; ++i) {
        const auto letter = static_cast<std::int32_t>(golden::random(seed * 100 + text, 2000 + i)[0] % (2 + text % 3));
        word += static_cast<char>('a' + letter);
        letters.push_back(letter);
      }
      const std::vector<std::int32_t> expected = reference(letters, model.merges);
      for (int round = 0; round < 2; ++round) {  // the second time from the cache, if the word is short
        std::vector<std::int32_t> ids = {77};
        encoding.encode(word, ids, memory);
        ASSERT_EQ(ids.front(), 77);
        ids.erase(ids.begin());
        ASSERT_EQ(ids, expected) << "seed " << seed << ", " << word;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, RandomMerges,
                         testing::Combine(testing::Values(SymbolKind::bytes, SymbolKind::code_points),
                                          testing::Bool()));

TEST(WordCache, KeepsWordsApart) {
  WordCache cache;
  std::vector<std::string> words = {"",  std::string(1, '\0'),  std::string(2, '\0'),
                                    "a", std::string("a\0", 2), std::string(23, 'x')};
  for (int i = 0; i < 3000; ++i) words.push_back("word" + std::to_string(i));
  std::size_t n_found = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    ASSERT_TRUE(WordCache::accepts(words[i]));
    const WordCache::Key key(words[i]);
    ASSERT_FALSE(cache.find(key)) << words[i];
    cache.insert(key, std::vector<std::int32_t>(i % (WordCache::kMaxIds + 2), static_cast<std::int32_t>(i)));
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto found = cache.find(WordCache::Key(words[i]));
    if (!found) continue;
    ++n_found;
    const std::vector<std::int32_t> expected(i % (WordCache::kMaxIds + 2), static_cast<std::int32_t>(i));
    ASSERT_TRUE(std::ranges::equal(*found, expected)) << words[i];
  }
  EXPECT_GT(n_found, words.size() * 3 / 4);  // except those that were replaced, or have too many ids
  EXPECT_FALSE(WordCache::accepts(std::string(24, 'x')));
}

}  // namespace
}  // namespace lockstep::text
