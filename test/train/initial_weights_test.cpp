// ranks: 2
// environment: LOCKSTEP_RANKS_PER_NODE=1
// sanitizers: no
// Ranks draw the initial weights together. The result is the same as on one rank, even if gradients travel in 16 bits.
#include <string>

#include "test/comm/test_world.h"
#include "test/train/small_run.h"

namespace lockstep {
namespace {

std::vector<float> initial_weights(World& world, const std::string& gradients) {
  Config config = test::small_config(8, 8);
  config.comm.gradients = gradients;
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  const auto communicator = comm::make_communicator(config.comm, world, *cpu);
  return test::SmallRun(config, *cpu, *communicator).all_weights();
}

TEST(InitialWeights, AreNotRounded) {
  const auto alone = comm::single_world();
  const std::vector<float> expected = initial_weights(*alone, "fp32");
  for (const char* const gradients : {"fp32", "bf16", "fp16"})
    EXPECT_EQ(initial_weights(*comm::test_world, gradients), expected) << gradients;
}

}  // namespace
}  // namespace lockstep
