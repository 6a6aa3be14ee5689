// Which losses count as spikes.
#include "train/skipped_steps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep::train {
namespace {

constexpr float kNone = std::numeric_limits<float>::infinity();

TEST(SpikeLimit, ThereIsNoneUntilEnoughLossesAreKnown) {
  SpikeLimit limit(3);
  for (std::size_t i = 0; i + 1 < SpikeLimit::kMinLosses; ++i) limit.add(2);
  EXPECT_EQ(limit.value(), kNone);
  limit.add(2);
  EXPECT_LT(limit.value(), kNone);
}

TEST(SpikeLimit, ZeroDisablesIt) {
  SpikeLimit limit(0);
  for (int i = 0; i < 100; ++i) limit.add(2);
  EXPECT_EQ(limit.value(), kNone);
}

TEST(SpikeLimit, MeanAndStandardDeviationOfTheWindow) {
  SpikeLimit limit(4);
  for (int i = 0; i < 1000; ++i) limit.add(77);                    // these leave the window
  for (int i = 0; i < 50; ++i) limit.add(i % 2 == 0 ? 1.0 : 3.0);  // mean 2, standard deviation 1
  EXPECT_FLOAT_EQ(limit.value(), 6);
}

TEST(SpikeLimit, AlmostConstantLossesAreNoSpikes) {
  SpikeLimit limit(5);
  for (int i = 0; i < 50; ++i) limit.add(2);
  EXPECT_FLOAT_EQ(limit.value(), 2 + 5 * 0.02f);
}

}  // namespace
}  // namespace lockstep::train
