// ranks: 1 2 3 4
// The messages between two ranks that lockstep doctor times.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/diagnosis.h"
#include "test/comm/test_world.h"

namespace lockstep::comm {
namespace {

TEST(PairProbe, NeedsTwoRanks) { EXPECT_EQ(make_pair_probe(*test_world) == nullptr, test_world->size() == 1); }

// Rank r meets rank r ^ 1; if the number of ranks is odd, the last one has no peer.
TEST(PairProbe, GivesBothRanksOfPairTheSameTime) {
  const auto probe = make_pair_probe(*test_world);
  if (!probe) GTEST_SKIP() << "needs two ranks";
  const int other = test_world->rank() ^ 1, peer = other < test_world->size() ? other : -1;
  for (int round = 0; round < 3; ++round) {
    const PairTime time = probe->exchange(peer);
    const auto bits = std::to_string(std::bit_cast<std::uint64_t>(time.seconds));
    const auto texts = test_world->all_gather(bits + " " + std::to_string(time.size_bytes));
    if (peer < 0) {
      EXPECT_EQ(time.size_bytes, 0u);
      EXPECT_EQ(time.seconds, 0);
    } else {
      EXPECT_GT(time.seconds, 0);
      EXPECT_TRUE(time.size_bytes == 1u << 20 || time.size_bytes == 32u << 20) << time.size_bytes;
      EXPECT_EQ(texts[static_cast<std::size_t>(test_world->rank())], texts[static_cast<std::size_t>(peer)]);
    }
  }
}

// All pairs in turn, even while other ranks are still in an earlier round: nobody waits for a message of another pair.
TEST(PairProbe, MeetsEveryRankInTurn) {
  const auto probe = make_pair_probe(*test_world);
  if (!probe) GTEST_SKIP() << "needs two ranks";
  for (int a = 0; a < test_world->size(); ++a)
    for (int b = a + 1; b < test_world->size(); ++b) {
      const int peer = test_world->rank() == a ? b : test_world->rank() == b ? a : -1;
      EXPECT_EQ(probe->exchange(peer).size_bytes > 0, peer >= 0);
    }
}

TEST(PairProbe, RefusesItselfAndRanksThatDoNotExist) {
  const auto probe = make_pair_probe(*test_world);
  if (!probe) GTEST_SKIP() << "needs two ranks";
  EXPECT_THROW(probe->exchange(test_world->rank()), Error);
  EXPECT_THROW(probe->exchange(test_world->size()), Error);
}

}  // namespace
}  // namespace lockstep::comm
