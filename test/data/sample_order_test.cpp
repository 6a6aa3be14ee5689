// The order of samples: a permutation that depends only on seed and epoch, and shards that tile it.
#include "data/sample_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace lockstep::data {
namespace {

bool is_permutation(std::vector<std::uint32_t> order) {
  std::sort(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size(); ++i)
    if (order[i] != i) return false;
  return true;
}

TEST(EpochOrder, IsAPermutationOfEverySize) {
  for (const std::int64_t n : {0, 1, 2, 3, 4, 5, 17, 256, 1000, 10007}) {
    const auto order = epoch_order(1, 0, n, true);
    ASSERT_EQ(order.size(), static_cast<std::size_t>(n));
    EXPECT_TRUE(is_permutation(order)) << n;
  }
}

TEST(EpochOrder, IsTheIdentityWithoutShuffle) {
  std::vector<std::uint32_t> identity(100);
  std::iota(identity.begin(), identity.end(), 0u);
  EXPECT_EQ(epoch_order(1, 3, 100, false), identity);
  EXPECT_NE(epoch_order(1, 3, 100, true), identity);
}

TEST(EpochOrder, DependsOnSeedAndEpochAlone) {
  const auto order = epoch_order(7, 2, 500, true);
  EXPECT_EQ(order, epoch_order(7, 2, 500, true));
  EXPECT_NE(order, epoch_order(8, 2, 500, true));
  EXPECT_NE(order, epoch_order(7, 3, 500, true));
}

// Checkpoints of earlier versions resume inside an epoch, so the order must never change. The numbers were computed in
// Python from the formula in sample_order.h.
TEST(EpochOrder, IsTheDocumentedOrder) {
  EXPECT_EQ(epoch_order(1, 0, 10, true), (std::vector<std::uint32_t>{9, 7, 0, 8, 6, 4, 1, 5, 3, 2}));
  EXPECT_EQ(epoch_order(42, 5, 10, true), (std::vector<std::uint32_t>{7, 4, 3, 8, 9, 0, 6, 2, 5, 1}));
}

// Each of 24 orders of 4 samples has probability 1/24; over 24,000 epochs the count's standard deviation is 31.
TEST(EpochOrder, IsUniform) {
  std::vector<int> counts(256, 0);
  for (std::uint32_t epoch = 0; epoch < 24000; ++epoch) {
    const auto order = epoch_order(1, epoch, 4, true);
    ++counts[order[0] * 64 + order[1] * 16 + order[2] * 4 + order[3]];
  }
  int n_orders = 0;
  for (const int count : counts)
    if (count > 0) {
      ++n_orders;
      EXPECT_NEAR(count, 1000, 155);  // five standard deviations
    }
  EXPECT_EQ(n_orders, 24);
}

TEST(ShardOf, TilesTheBatchWithShardsThatDifferByOneAtMost) {
  for (int size = 1; size <= 9; ++size)
    for (std::int64_t batch = 0; batch <= 40; ++batch) {
      std::int64_t end = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Shard shard = shard_of(batch, rank, size);
        EXPECT_EQ(shard.begin, end);
        EXPECT_EQ(shard.size(), batch / size + (rank < batch % size ? 1 : 0));
        end = shard.end;
      }
      EXPECT_EQ(end, batch);
    }
}

}  // namespace
}  // namespace lockstep::data
