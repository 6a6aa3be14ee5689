// Learning rates, compared with closed forms and with PyTorch's schedulers (test/golden/schedule.json).
#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::train {
namespace {

constexpr double kRounding = 1e-15;  // a few operations in double, values up to 1

Config::Schedule of_kind(const std::string& kind) {
  Config::Schedule config;
  config.kind = kind;
  return config;
}

TEST(Schedule, LengthIsConfiguredOrFollowsFromEpochs) {
  Config::Schedule config = of_kind("cosine");  // the rate is halved in the middle, and 0 at the end
  const Schedule from_epochs(config, 0.1, 10, 3);
  EXPECT_NEAR(from_epochs.learning_rate(15), 0.05, kRounding);
  EXPECT_NEAR(from_epochs.learning_rate(30), 0.0, kRounding);
  config.steps = 18;
  const Schedule given(config, 0.1, 10, 3);
  EXPECT_NEAR(given.learning_rate(9), 0.05, kRounding);
  EXPECT_NEAR(given.learning_rate(18), 0.0, kRounding);
}

TEST(Schedule, ConstantStays) {
  const Schedule schedule(of_kind("constant"), 0.1, 10, 3);
  for (const std::int64_t step : {0, 1, 29, 30, 1000}) EXPECT_EQ(schedule.learning_rate(step), 0.1);
}

TEST(Schedule, CosineAgreesAtItsQuarters) {
  const Schedule schedule(of_kind("cosine"), 0.8, 25, 4);
  EXPECT_NEAR(schedule.learning_rate(0), 0.8, kRounding);
  EXPECT_NEAR(schedule.learning_rate(25), 0.4 * (1 + std::sqrt(0.5)), kRounding);
  EXPECT_NEAR(schedule.learning_rate(50), 0.4, kRounding);
  EXPECT_NEAR(schedule.learning_rate(75), 0.4 * (1 - std::sqrt(0.5)), kRounding);
  EXPECT_NEAR(schedule.learning_rate(100), 0.0, kRounding);
  EXPECT_EQ(schedule.learning_rate(1000), schedule.learning_rate(100));
}

TEST(Schedule, CosineEndsAtItsFinalRate) {
  Config::Schedule config = of_kind("cosine");
  config.final_learning_rate = 0.2;
  const Schedule schedule(config, 0.8, 25, 4);
  EXPECT_NEAR(schedule.learning_rate(0), 0.8, kRounding);
  EXPECT_NEAR(schedule.learning_rate(50), 0.5, kRounding);
  EXPECT_NEAR(schedule.learning_rate(100), 0.2, kRounding);
}

TEST(Schedule, WarmupByStepsRisesLinearlyAndShortensTheCurve) {
  Config::Schedule config = of_kind("cosine");
  config.warmup_steps = 4;
  const Schedule schedule(config, 1.0, 10, 2);
  for (int step = 0; step < 4; ++step) EXPECT_NEAR(schedule.learning_rate(step), (step + 1) / 4.0, kRounding);
  EXPECT_NEAR(schedule.learning_rate(4), 1.0, kRounding);
  EXPECT_NEAR(schedule.learning_rate(12), 0.5, kRounding);  // half of the remaining 16 steps
  EXPECT_NEAR(schedule.learning_rate(20), 0.0, kRounding);
}

TEST(Schedule, WarmupByEpochsMayBeAFraction) {
  Config::Schedule config = of_kind("constant");
  config.warmup_epochs = 1.5;
  const Schedule schedule(config, 0.3, 10, 3);
  EXPECT_NEAR(schedule.learning_rate(0), 0.3 / 15, kRounding);
  EXPECT_NEAR(schedule.learning_rate(13), 0.3 * 14 / 15, kRounding);
  EXPECT_NEAR(schedule.learning_rate(14), 0.3, kRounding);
  EXPECT_NEAR(schedule.learning_rate(15), 0.3, kRounding);
}

/// Like PyTorch's LinearLR, which reaches the full rate only after its last step.
TEST(Schedule, WarmupMayBeginWithAPartOfTheRate) {
  Config::Schedule config = of_kind("cosine");
  config.warmup_steps = 4;
  config.warmup_start = 0.2;
  const Schedule schedule(config, 0.5, 10, 2);
  for (int step = 0; step < 4; ++step) EXPECT_NEAR(schedule.learning_rate(step), 0.5 * (0.2 + 0.2 * step), kRounding);
  EXPECT_NEAR(schedule.learning_rate(4), 0.5, kRounding);
  EXPECT_NEAR(schedule.learning_rate(12), 0.25, kRounding);
  config.warmup_start = 1;
  for (int step = 0; step < 5; ++step) EXPECT_NEAR(Schedule(config, 0.5, 10, 2).learning_rate(step), 0.5, kRounding);
}

TEST(Schedule, RatesThatChangePerEpochAreThoseOfItsFirstStep) {
  Config::Schedule config = of_kind("polynomial");
  config.update = "epoch";
  config.warmup_epochs = 2;
  const Schedule schedule(config, 1.0, 10, 6);
  const std::vector<double> expected{0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0};  // 1 / W, 2 / W, and the decay to 0
  for (int step = 0; step < 70; ++step)
    EXPECT_NEAR(schedule.learning_rate(step), expected[static_cast<std::size_t>(step / 10)], kRounding) << step;
  EXPECT_NEAR(schedule.learning_rate(75), 0.0, kRounding);
}

/// LinearLR and CosineAnnealingLR, called once per epoch, as torchvision's references combine them.
TEST(Schedule, PerEpochAgreesWithPyTorch) {
  const nlohmann::json all = nlohmann::json::parse(std::ifstream("test/golden/schedule.json")).at("rates");
  EXPECT_EQ(all.size(), 3u);
  for (const nlohmann::json& c : all) {
    Config::Schedule config = of_kind("cosine");
    config.update = "epoch";
    config.warmup_epochs = c["warmup"];
    config.warmup_start = c["start"];
    config.final_learning_rate = c["final"];
    const int epochs = c["epochs"];
    constexpr int kSteps = 3;
    const Schedule schedule(config, c["learning_rate"], kSteps, epochs);
    const auto rates = c["rates"].get<std::vector<double>>();
    ASSERT_EQ(std::ssize(rates), epochs);
    // PyTorch computes a rate from that of the previous epoch, so its rounding errors add up.
    for (int step = 0; step < kSteps * epochs; ++step)
      EXPECT_NEAR(schedule.learning_rate(step), rates[static_cast<std::size_t>(step / kSteps)], 1e-13) << step;
  }
}

TEST(Schedule, LengthsAreWholeEpochsWhereRatesChangePerEpoch) {
  Config::Schedule config = of_kind("cosine");
  config.update = "epoch";
  config.warmup_epochs = 1.5;
  EXPECT_THROW(Schedule(config, 1.0, 10, 3), Error);
  config.warmup_epochs = 1;
  Schedule(config, 1.0, 10, 3);
  config.steps = 25;
  EXPECT_THROW(Schedule(config, 1.0, 10, 3), Error);
  config.update = "step";
  Schedule(config, 1.0, 10, 3);
}

TEST(Schedule, WarmupMayHaveTheWholeLengthButNotMore) {
  Config::Schedule config = of_kind("cosine");
  config.warmup_steps = 10;
  const Schedule schedule(config, 1.0, 10, 1);
  EXPECT_NEAR(schedule.learning_rate(9), 1.0, kRounding);
  EXPECT_NEAR(schedule.learning_rate(10), 0.0, kRounding);
  config.warmup_steps = 11;
  EXPECT_THROW(Schedule(config, 1.0, 10, 1), Error);
}

TEST(Schedule, PolynomialIsAPowerOfTheRemainingFraction) {
  Config::Schedule config = of_kind("polynomial");
  config.final_learning_rate = 0.1;
  const Schedule linear(config, 1.1, 10, 10);
  EXPECT_NEAR(linear.learning_rate(0), 1.1, kRounding);
  EXPECT_NEAR(linear.learning_rate(25), 0.85, kRounding);
  EXPECT_NEAR(linear.learning_rate(100), 0.1, kRounding);
  EXPECT_NEAR(linear.learning_rate(500), 0.1, kRounding);
  config.power = 2;
  EXPECT_NEAR(Schedule(config, 1.1, 10, 10).learning_rate(50), 0.1 + 0.25, kRounding);
}

TEST(Schedule, StepFallsAtEpochsFromStepZero) {
  Config::Schedule config = of_kind("step");
  config.step_epochs = 3;
  config.gamma = 0.1;
  config.warmup_epochs = 1;
  const Schedule schedule(config, 1.0, 10, 7);
  EXPECT_NEAR(schedule.learning_rate(4), 0.5, kRounding);
  EXPECT_NEAR(schedule.learning_rate(29), 1.0, kRounding);
  EXPECT_NEAR(schedule.learning_rate(30), 0.1, kRounding);
  EXPECT_NEAR(schedule.learning_rate(59), 0.1, kRounding);
  EXPECT_NEAR(schedule.learning_rate(60), 0.01, kRounding);
  EXPECT_NEAR(schedule.learning_rate(69), 0.01, kRounding);
  EXPECT_NEAR(schedule.learning_rate(1000), 0.01, kRounding);  // beyond the end: the last value
}

TEST(Schedule, IsScaledWithTheGlobalBatchWhenAsked) {
  Config::Optimizer optimizer;
  EXPECT_EQ(learning_rate_factor(optimizer, 1024), 1.0);
  optimizer.learning_rate_batch = 256;
  EXPECT_EQ(learning_rate_factor(optimizer, 1024), 4.0);
  EXPECT_EQ(learning_rate_factor(optimizer, 64), 0.25);
  Config::Schedule config = of_kind("cosine");
  config.warmup_steps = 10;
  config.final_learning_rate = 0.01;
  const Schedule plain(config, 0.1, 10, 10), scaled(config, 0.1, 10, 10, 4.0);
  for (const int step : {0, 5, 10, 60, 99, 200})
    EXPECT_EQ(scaled.learning_rate(step), 4 * plain.learning_rate(step)) << step;
}

TEST(Schedule, IsAFunctionOfTheStepAlone) {
  Config::Schedule config = of_kind("cosine");
  config.warmup_epochs = 1;
  const Schedule whole(config, 0.1, 15, 10);
  std::vector<double> forwards;
  for (int step = 0; step < 150; ++step) forwards.push_back(whole.learning_rate(step));
  const Schedule resumed(config, 0.1, 15, 10);  // starts in the middle
  for (int step = 149; step >= 70; --step)
    EXPECT_EQ(resumed.learning_rate(step), forwards[static_cast<std::size_t>(step)]);
}

}  // namespace
}  // namespace lockstep::train
