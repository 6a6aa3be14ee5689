// The batch as a run reports it: the numbers in the line must add up.
#include "train/banner.h"

#include <gtest/gtest.h>

namespace lockstep::train {
namespace {

std::string text(std::int64_t global_batch, int ranks, int accumulate, int micro_batches = 0) {
  Config config;
  config.train.global_batch = global_batch;
  config.train.accumulate = accumulate;
  config.train.micro_batches = micro_batches;
  return batch_text(batch_shape(config, 0, ranks));
}

TEST(Banner, DescribesTheBatch) {
  EXPECT_EQ(text(64, 2, 2), "64 in total = 2 ranks x 16 x 2 accumulated");
  EXPECT_EQ(text(64, 1, 1), "64 in total = 1 rank x 64 x 1 accumulated");
  EXPECT_EQ(text(64, 5, 1), "64 in total = 5 ranks x 12 to 13 x 1 accumulated");
  EXPECT_EQ(text(16, 7, 1), "16 in total = 7 ranks x 2 to 3 x 1 accumulated");
  EXPECT_EQ(text(32, 2, 1, 8), "32 in total = 8 micro-batches x 4, 4 per rank");
  EXPECT_EQ(text(32, 3, 1, 8), "32 in total = 8 micro-batches x 4, 2 to 4 per rank");
}

}  // namespace
}  // namespace lockstep::train
