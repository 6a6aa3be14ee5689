// Finding the rank for which the others wait.
#include "run/slow_rank.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::run {
namespace {

TEST(SlowRank, TheRankThatWaitsLeastIsNamed) {
  const std::vector<double> waits = {0.5, 0.4, 0.05, 0.3};
  const auto slow = find_slow_rank(waits, 0.2);
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->rank, 2);
  EXPECT_NEAR(slow->waited_for, (0.45 + 0.35 + 0.25) / 3, 1e-12);
  EXPECT_FALSE(find_slow_rank(waits, 0.36));
}

TEST(SlowRank, NoneIsNamedIfAllWaitEqually) {
  EXPECT_FALSE(find_slow_rank(std::vector<double>{0.6, 0.6, 0.55}, 0.2));  // the cause is the network
  EXPECT_FALSE(find_slow_rank(std::vector<double>{0.9}, 0.2));
}

}  // namespace
}  // namespace lockstep::run
