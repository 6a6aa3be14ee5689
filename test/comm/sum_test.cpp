#include "comm/sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "lockstep/bf16.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

template <typename T>
void test_order(DType dtype, int ranks, std::size_t n) {
  std::vector<std::vector<T>> values(static_cast<std::size_t>(ranks), std::vector<T>(n));
  std::vector<T> expected(n);
  for (std::size_t r = 0; r < values.size(); ++r) {
    for (std::size_t i = 0; i < n; ++i) {
      values[r][i] = static_cast<T>((r % 2 == 0 ? 1e7 : -3.3) / static_cast<double>(i % 97 + r + 1));
      expected[i] += values[r][i];  // from 0: the first addition is exact
    }
  }
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> targets;
  for (auto& of_rank : values) {
    sources.push_back(reinterpret_cast<const std::byte*>(of_rank.data()));
    targets.push_back(reinterpret_cast<std::byte*>(of_rank.data()));
  }
  // With a separate target, the sources stay unchanged.
  std::vector<T> before = values[0];
  std::vector<T> separate(n);
  sum(sources, std::vector{reinterpret_cast<std::byte*>(separate.data())}, n, dtype, sequential_order(ranks));
  EXPECT_EQ(separate, expected) << ranks << " ranks, " << n;
  EXPECT_EQ(values[0], before);
  sum(sources, targets, n, dtype, sequential_order(ranks));
  for (const auto& of_rank : values) EXPECT_EQ(of_rank, expected) << ranks << " ranks, " << n;
}

TEST(Sum, GivesBitsOfSequentialSum) {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    for (const std::size_t n :
         {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{1023}, std::size_t{1025}, std::size_t{5000}}) {
      test_order<float>(DType::fp32, ranks, n);
      test_order<double>(DType::fp64, ranks, n);
    }
  }
}

/// The sum of the leaves [begin, end), computed from the definition of the tree.
float sum_of_tree(const std::vector<float>& leaves, std::size_t begin, std::size_t end) {
  if (end - begin == 1) return leaves[begin];
  const std::size_t middle = end - (end - begin) / 2;
  return sum_of_tree(leaves, begin, middle) + sum_of_tree(leaves, middle, end);
}

std::vector<float> uneven_values(int n) {
  std::vector<float> out;
  for (int i = 0; i < n; ++i) out.push_back((i % 2 == 0 ? 1e7f : -3.3f) / static_cast<float>(i + 1));
  return out;
}

float sum_by(const SumOrder& order, const std::vector<float>& values) {
  std::vector<const std::byte*> sources;
  for (const float& value : values) sources.push_back(reinterpret_cast<const std::byte*>(&value));
  float total = 0;
  sum(sources, std::vector{reinterpret_cast<std::byte*>(&total)}, 1, DType::fp32, order);
  return total;
}

TEST(SumOrder, GivesBitsOfTreeSum) {
  EXPECT_EQ(tree_order(4).merges, (std::vector<int>{0, 1, 0, 2}));
  EXPECT_EQ(tree_order(5).merges, (std::vector<int>{0, 1, 1, 0, 2}));
  int n_different = 0;
  for (int n = 1; n <= 40; ++n) {
    const std::vector<float> values = uneven_values(n);
    const float total = sum_by(tree_order(n), values);
    EXPECT_EQ(total, sum_of_tree(values, 0, values.size())) << n << " leaves";
    n_different += total != sum_by(sequential_order(n), values);
  }
  EXPECT_GT(n_different, 3);  // these values distinguish the orders
}

TEST(SumOrder, GivesSameBitsForAnyNumberOfRanks) {
  EXPECT_EQ(subtree_sizes(8, 3), (std::vector<int>{4, 2, 2}));
  EXPECT_EQ(subtree_sizes(8, 5), (std::vector<int>{2, 2, 2, 1, 1}));
  EXPECT_EQ(subtree_sizes(12, 4), (std::vector<int>{3, 3, 3, 3}));
  for (const int n_leaves : {1, 2, 7, 8, 12, 33}) {
    const std::vector<float> values = uneven_values(n_leaves);
    const SumOrder order = tree_order(n_leaves);
    for (int n_ranks = 1; n_ranks <= n_leaves; ++n_ranks) {
      const std::vector<int> sizes = subtree_sizes(n_leaves, n_ranks);
      EXPECT_EQ(sizes.front(), *std::max_element(sizes.begin(), sizes.end()));
      EXPECT_EQ(sizes.back(), *std::min_element(sizes.begin(), sizes.end()));
      const auto grouped = group(order, sizes);
      ASSERT_TRUE(grouped.has_value()) << n_leaves << " leaves, " << n_ranks << " ranks";
      std::vector<float> sums;
      auto begin = values.begin();
      for (std::size_t r = 0; r < sizes.size(); begin += sizes[r++])
        sums.push_back(sum_by(grouped->inner[r], std::vector<float>(begin, begin + sizes[r])));
      EXPECT_EQ(sum_by(grouped->outer, sums), sum_by(order, values)) << n_leaves << " leaves, " << n_ranks << " ranks";
    }
  }
}

TEST(SumOrder, RejectsGroupsThatAreNotSubtrees) {
  EXPECT_FALSE(group(tree_order(8), std::vector<int>{3, 3, 2}));
  EXPECT_FALSE(group(tree_order(4), std::vector<int>{1, 2, 1}));
  EXPECT_TRUE(group(tree_order(4), std::vector<int>{1, 1, 2}));
}

/// With two ranks, which have a loop of their own, and with more.
TEST(Sum, RoundsToBf16AfterEachAddition) {
  for (const std::vector<float>& values :
       {std::vector{256.0f, 1.0f}, std::vector{256.0f, 1.0f, 1.0f}, std::vector{1.0f, 1.0f, 256.0f}}) {
    std::vector<std::vector<Bf16>> of_ranks;
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> targets;
    for (const float value : values) of_ranks.emplace_back(3000, to_bf16(value));
    for (auto& of_rank : of_ranks) {
      sources.push_back(reinterpret_cast<const std::byte*>(of_rank.data()));
      targets.push_back(reinterpret_cast<std::byte*>(of_rank.data()));
    }
    sum(sources, targets, 3000, DType::bf16, sequential_order(static_cast<int>(values.size())));
    for (const auto& of_rank : of_ranks)
      for (const Bf16 total : of_rank) ASSERT_EQ(to_float(total), values[0] == 256 ? 256 : 258);
  }
}

TEST(Sum, RejectsOtherTypes) {
  std::int32_t x = 1;
  std::byte* data = reinterpret_cast<std::byte*>(&x);
  EXPECT_THROW(sum(std::vector<const std::byte*>{data}, std::vector{data}, 1, DType::int32, sequential_order(1)),
               Error);
}

TEST(ShardOf, ShardsTileWithoutOverlapOnCacheLines) {
  for (const std::size_t element_bytes : {std::size_t{1}, std::size_t{4}, std::size_t{8}}) {
    for (const int n_shards : {1, 2, 3, 7, 64}) {
      for (const std::size_t n :
           {std::size_t{0}, std::size_t{1}, std::size_t{16}, std::size_t{17}, std::size_t{1000}, std::size_t{100003}}) {
        std::size_t end = 0;
        for (int i = 0; i < n_shards; ++i) {
          const ElementRange shard = shard_of(n, element_bytes, n_shards, i);
          EXPECT_EQ(shard.begin, end);
          if (shard.n_elements > 0) {
            EXPECT_EQ(shard.begin * element_bytes % 64, 0u);
          }
          end = shard.begin + shard.n_elements;
        }
        EXPECT_EQ(end, n);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
