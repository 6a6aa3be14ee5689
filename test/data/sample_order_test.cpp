// The order of samples: a permutation that depends only on seed and epoch, and shards that tile it.
#include "data/sample_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
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

// Each of the 24 orders of 4 samples has probability 1/24; over 24,000 epochs, the standard deviation of the count is
// 31.
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

/// Class 0 has 70 samples, class 3 has 20, class 5 has 7; three samples have none.
std::vector<std::int32_t> unequal_classes() {
  std::vector<std::int32_t> classes(100, 0);
  for (std::size_t i = 0; i < 20; ++i) classes[5 * i] = 3;
  for (std::size_t i = 0; i < 7; ++i) classes[7 * i + 1] = 5;
  for (const std::size_t i : {2u, 50u, 99u}) classes[i] = -1;
  return classes;
}

TEST(BalancedOrder, DrawsClassesEquallyOften) {
  const std::vector<std::int32_t> classes = unequal_classes();
  std::map<std::int32_t, int> over_epochs;
  for (const bool shuffle : {true, false})
    for (std::uint32_t epoch = 0; epoch < 6; ++epoch) {
      const auto order = balanced_order(1, epoch, classes, shuffle);
      ASSERT_EQ(order.size(), classes.size());
      std::map<std::int32_t, int> drawn;
      std::map<std::uint32_t, int> times;
      for (const std::uint32_t sample : order) ++drawn[classes[sample]], ++times[sample];
      ASSERT_EQ(drawn.size(), 3u);
      for (const auto& [number, n] : drawn) EXPECT_TRUE(number >= 0 && (n == 33 || n == 34)) << number << ": " << n;
      // All samples of a class occur before one occurs again.
      for (std::size_t i = 0; i < classes.size(); ++i) {
        const int n = times[static_cast<std::uint32_t>(i)];
        const std::int32_t number = classes[i];
        EXPECT_TRUE(number != 0 || n <= 1) << n;
        EXPECT_TRUE(number != 3 || n == 1 || n == 2) << n;
        EXPECT_TRUE(number != 5 || n == 4 || n == 5) << n;
      }
      for (const auto& [number, n] : drawn) over_epochs[number] += shuffle ? n : 0;
    }
  for (const auto& [number, n] : over_epochs) EXPECT_EQ(n, 200) << "the remainder is given to each class in turn";
}

TEST(BalancedOrder, DependsOnSeedAndEpochAlone) {
  const std::vector<std::int32_t> classes = unequal_classes();
  const auto order = balanced_order(7, 2, classes, true);
  EXPECT_EQ(order, balanced_order(7, 2, classes, true));
  EXPECT_NE(order, balanced_order(8, 2, classes, true));
  EXPECT_NE(order, balanced_order(7, 3, classes, true));
  const std::vector<std::int32_t> few{1, 0, 0, 0, 0, 0};
  EXPECT_EQ(balanced_order(1, 0, few, false), (std::vector<std::uint32_t>{1, 0, 2, 0, 3, 0}));
  EXPECT_EQ(balanced_order(1, 9, few, false), balanced_order(1, 0, few, false));
}

/// Runs are resumed inside an epoch, so the order must never change. The numbers were computed in Python from the
/// documentation in sample_order.h.
TEST(BalancedOrder, IsTheDocumentedOrder) {
  const std::vector<std::int32_t> classes{0, 0, 1, 0, 0, 0, 1, 0, 2, 0};
  EXPECT_EQ(balanced_order(42, 5, classes, true), (std::vector<std::uint32_t>{6, 2, 9, 8, 8, 5, 3, 8, 8, 6}));
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
