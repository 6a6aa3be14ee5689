// The scalars of a step that depend on when the optimizer started, and the momentum of the average of the weights.
#include "train/schedule.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

namespace lockstep::train {
namespace {

TEST(StepScalarsTest, TheCorrectionOfAdamCountsFromItsFirstStep) {
  Config::Optimizer optimizer;
  optimizer.kind = "adamw";
  const auto at = [&](std::int64_t step, std::int64_t begin) {
    return make_step_scalars({.step = step, .optimizer_begin = begin, .nominal_count = 8}, optimizer);
  };
  EXPECT_FLOAT_EQ(at(0, 0).adam_correction1, 10.0F);  // 1 / (1 - 0.9)
  EXPECT_FLOAT_EQ(at(0, 0).adam_correction2, 1000.0F);
  EXPECT_EQ(at(100, 100).adam_correction1, at(0, 0).adam_correction1);
  EXPECT_EQ(at(103, 100).adam_correction2, at(3, 0).adam_correction2);
  EXPECT_EQ(at(103, 100).step, 103U) << "random numbers depend on the step of the run";
}

TEST(StepScalarsTest, WeightsEnterTheirAverageAtIntervals) {
  const auto momenta = [](const Config::Ema& ema, std::int64_t warmup_steps) {
    std::vector<float> all;
    for (std::int64_t step = 0; step < 9; ++step) all.push_back(average_momentum(ema, step, warmup_steps, 5));
    return all;
  };
  EXPECT_EQ(momenta({}, 2), std::vector<float>(9)) << "there is none";
  EXPECT_EQ(momenta({.decay = 0.75}, 0), (std::vector<float>{1, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25}));
  // As in torchvision's references: a copy during the warm-up, and once more after it.
  EXPECT_EQ(momenta({.decay = 0.75}, 3), (std::vector<float>{1, 1, 1, 1, 0.25, 0.25, 0.25, 0.25, 0.25}));
  EXPECT_EQ(momenta({.decay = 0.75, .every_steps = 2}, 3), (std::vector<float>{0, 1, 0, 1, 0, 0.25, 0, 0.25, 0}));
  EXPECT_EQ(momenta({.decay = 0.75, .every_steps = 2}, 0), (std::vector<float>{0, 1, 0, 0.25, 0, 0.25, 0, 0.25, 0}));
  // The intervals start anew with each epoch, here of 5 steps.
  EXPECT_EQ(momenta({.decay = 0.75, .every_steps = 2, .intervals = "epoch"}, 0),
            (std::vector<float>{1, 0, 0.25, 0, 0.25, 0.25, 0, 0.25, 0}));
  EXPECT_EQ(momenta({.decay = 0.75, .every_steps = 2, .intervals = "epoch"}, 5),
            (std::vector<float>{1, 0, 1, 0, 1, 1, 0, 0.25, 0}));
}

/// The steps after which torchvision's references update their average, and by how much (test/golden/schedule.json).
TEST(StepScalarsTest, IntervalsOfEpochsAreThoseOfTorchvision) {
  const nlohmann::json all = nlohmann::json::parse(std::ifstream("test/golden/schedule.json")).at("averages");
  EXPECT_EQ(all.size(), 4u);
  for (const nlohmann::json& c : all) {
    const std::int64_t steps_per_epoch = c["steps_per_epoch"];
    const std::int64_t warmup_steps = c["warmup_epochs"].get<std::int64_t>() * steps_per_epoch;
    const Config::Ema ema{.decay = c["decay"], .every_steps = c["every_steps"], .intervals = "epoch"};
    std::vector<float> momenta;
    for (std::int64_t step = 0; step < std::ssize(c["momenta"]); ++step)
      momenta.push_back(average_momentum(ema, step, warmup_steps, steps_per_epoch));
    EXPECT_EQ(momenta, c["momenta"].get<std::vector<float>>()) << c.dump();
  }
}

}  // namespace
}  // namespace lockstep::train
