// The cost model finds the terms from which the steps were made, and its predictions have the errors that it states.
#include "scaling/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "lockstep/error.h"
#include "scaling/measurement.h"

namespace lockstep::scaling {
namespace {

constexpr Exchanged kResNet{.bytes = 102e6, .buckets = 5};

/// A machine with known terms: 1 GB/s and 20 us between nodes, 10 GB/s inside.
CostModel machine() {
  return {.fixed_seconds = 0.01,
          .sample_seconds = 0.004,
          .node_hop_seconds = 20e-6,
          .node_byte_seconds = 1e-9,
          .rank_hop_seconds = 0,
          .rank_byte_seconds = 1e-10,
          .hidden_part = 0.6,
          .straggler_part = 0.02,
          .data_seconds = 0.003,
          .has_exchange_times = true,
          .exchanged = kResNet};
}

CostPoint measured_on(const CostModel& model, const CostSize& size, double noise = 1) {
  const Prediction p = model.predict(size);
  return {.size = size,
          .step_seconds = p.step_seconds() * noise,
          .exposed_seconds = p.exposed_seconds * noise,
          .data_seconds = p.data_seconds * noise,
          .exchange_seconds = model.exchange_seconds(size) * noise};
}

/// A strong study of 64 samples, one rank per node.
CostSize strong(int nodes) { return {.ranks = nodes, .nodes = nodes, .samples_per_rank = 64.0 / nodes}; }

std::vector<CostPoint> study(const std::vector<CostSize>& sizes, double noise = 0) {
  std::minstd_rand random(7);
  std::normal_distribution<double> normal;
  std::vector<CostPoint> points;
  for (const CostSize& size : sizes)
    for (int repeat = 0; repeat < 3; ++repeat)
      points.push_back(measured_on(machine(), size, 1 + noise * normal(random)));
  return points;
}

// The other tests generate steps with the model itself; these were worked out by hand.
TEST(CostModel, AddsTheTermsOfAStep) {
  const CostModel model{.fixed_seconds = 0.5,
                        .sample_seconds = 0.25,
                        .node_hop_seconds = 1,
                        .node_byte_seconds = 1e-3,
                        .rank_hop_seconds = 0.25,
                        .rank_byte_seconds = 2e-3,
                        .hidden_part = 0.5,
                        .data_seconds = 0.125,
                        .has_exchange_times = true,
                        .exchanged = {.bytes = 1000, .buckets = 2}};
  CostSize size{.ranks = 4, .nodes = 2, .samples_per_rank = 8};
  // Two buckets of 2 hops between 2 nodes, and as many between 2 ranks of a node; each sends all bytes once.
  EXPECT_DOUBLE_EQ(model.exchange_seconds(size), 4 + 1 + 1 + 2);
  const Prediction p = model.predict(size);
  EXPECT_DOUBLE_EQ(p.compute_seconds, 0.5 + 8 * 0.25);
  EXPECT_DOUBLE_EQ(p.exposed_seconds, 8 - 0.5 * 2.5);
  EXPECT_DOUBLE_EQ(p.step_seconds(), 2.5 + 6.75 + 0.125);
  size.samples_per_rank = 40;
  EXPECT_DOUBLE_EQ(model.predict(size).exposed_seconds, 4) << "the last of the two buckets is never hidden";
}

TEST(CostModel, FindsTheTermsOfStudyWithoutNoise) {
  const CostModel model = fit_cost_model(study({strong(1), strong(2), strong(4)}), kResNet, "samples");
  EXPECT_NEAR(model.fixed_seconds, 0.01, 1e-6);
  EXPECT_NEAR(model.sample_seconds, 0.004, 1e-8);
  EXPECT_NEAR(model.node_hop_seconds, 20e-6, 1e-8);
  EXPECT_NEAR(model.node_byte_seconds, 1e-9, 1e-13);
  EXPECT_NEAR(model.data_seconds, 0.003, 1e-9);
  EXPECT_TRUE(model.has_exchange_times);
  EXPECT_LT(model.error, 0.01);
  for (const int nodes : {8, 16, 64}) {
    const double expected = machine().predict(strong(nodes)).step_seconds();
    EXPECT_NEAR(model.predict(strong(nodes)).step_seconds(), expected, 0.05 * expected) << nodes;
  }
}

TEST(CostModel, FindsBandwidthInsideNodesToo) {
  std::vector<CostSize> sizes;
  for (const int ranks : {1, 2, 4, 8}) sizes.push_back({.ranks = ranks, .nodes = 1, .samples_per_rank = 64.0 / ranks});
  for (const int nodes : {2, 4}) sizes.push_back({.ranks = 8 * nodes, .nodes = nodes, .samples_per_rank = 8.0 / nodes});
  const CostModel model = fit_cost_model(study(sizes), kResNet, "samples");
  EXPECT_NEAR(model.rank_byte_seconds, 1e-10, 1e-12);
  EXPECT_NEAR(model.node_byte_seconds, 1e-9, 1e-11);
}

// Noise of 3 % must neither move the prediction for twice the nodes by more than the interval says, nor make the
// interval uselessly wide.
TEST(CostModel, PredictsTwiceTheNodesWithinItsInterval) {
  const CostModel model = fit_cost_model(study({strong(1), strong(2), strong(4)}, 0.03), kResNet, "samples");
  const Prediction p = model.predict(strong(8));
  const double expected = machine().predict(strong(8)).step_seconds();
  EXPECT_LT(p.low, expected);
  EXPECT_GT(p.high, expected);
  EXPECT_LT(p.high - p.low, 0.4 * expected);
  EXPECT_GT(model.error, 0);
}

// Ranks that share cores compute more slowly, like containers on one machine.
TEST(CostModel, KnowsSharedCores) {
  std::vector<CostSize> sizes;
  for (const int nodes : {1, 2, 4})
    sizes.push_back({.ranks = nodes, .nodes = nodes, .samples_per_rank = 8, .sharing = std::max(1.0, nodes / 2.0)});
  const CostModel model = fit_cost_model(study(sizes), kResNet, "samples");
  const CostSize eight{.ranks = 8, .nodes = 8, .samples_per_rank = 8, .sharing = 4};
  const double expected = machine().predict(eight).step_seconds();
  EXPECT_NEAR(model.predict(eight).step_seconds(), expected, 0.05 * expected);
  EXPECT_EQ(model.fixed_seconds, 0) << "a batch that is always the same tells nothing about the time without samples";
}

// With NCCL, the exchanges themselves are not timed.
TEST(CostModel, FitsExposedCommunicationIfExchangesAreNotTimed) {
  auto points = study({strong(1), strong(2), strong(4)});
  for (CostPoint& p : points) p.exchange_seconds = std::numeric_limits<double>::quiet_NaN();
  const CostModel model = fit_cost_model(points, kResNet, "samples");
  EXPECT_FALSE(model.has_exchange_times);
  EXPECT_LT(model.error, 0.12);  // stated by the model: hidden and fast communication look the same
  const double expected = machine().predict(strong(8)).step_seconds();
  EXPECT_NEAR(model.predict(strong(8)).step_seconds(), expected, 0.25 * expected);
}

TEST(CostModel, NeedsTwoSizes) {
  EXPECT_THROW(fit_cost_model(study({strong(2)}), kResNet, "samples"), Error);
  EXPECT_THROW(fit_cost_model({}, kResNet, "samples"), Error);
}

TEST(CostModel, JsonGivesTheSameModel) {
  const CostModel model = fit_cost_model(study({strong(1), strong(4)}, 0.01), kResNet, "tokens");
  const CostModel read = cost_model_in(json_of(model).dump(), "model.json");
  EXPECT_EQ(json_of(read).dump(), json_of(model).dump());
  EXPECT_EQ(read.predict(strong(8)).step_seconds(), model.predict(strong(8)).step_seconds());
  EXPECT_EQ(read.predict(strong(8)).high, model.predict(strong(8)).high);
}

TEST(CostModel, DamagedFilesAreNamed) {
  for (const char* text : {"", "{", "[]", "{}", R"({"format": "lockstep scaling model 1"})",
                           R"({"format": "lockstep scaling model 2", "unit": "samples"})"}) {
    try {
      cost_model_in(text, "here/model.json");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("here/model.json"), std::string::npos) << error.what();
    }
  }
}

TEST(CostModel, TextNamesEveryTermWithItsUnit) {
  const std::string text = text_of(fit_cost_model(study({strong(1), strong(2), strong(4)}), kResNet, "samples"));
  for (const char* part : {"step = compute + exposed + data", "ms per sample of a rank", "between nodes   20.0 us",
                           "1 GB/s", "slowest rank", "fitted to 1, 2, 4 ranks"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_EQ(text.find("inside a node"), std::string::npos) << text;
}

TEST(NonnegativeLeastSquares, SolvesAndStaysAtZero) {
  // y = 2 a + 3 b
  const std::vector<double> rows = {1, 0, 0, 1, 1, 1};
  const auto exact = nonnegative_least_squares(rows, std::vector<double>{2, 3, 5}, 2);
  EXPECT_NEAR(exact[0], 2, 1e-12);
  EXPECT_NEAR(exact[1], 3, 1e-12);
  // Without the bound, b would be -1.
  const auto bounded = nonnegative_least_squares(rows, std::vector<double>{2, -1, 1}, 2);
  EXPECT_EQ(bounded[1], 0);
  EXPECT_NEAR(bounded[0], 1.5, 1e-12);
  // A column of zeros, and no row at all
  EXPECT_EQ(nonnegative_least_squares(std::vector<double>{0, 2}, std::vector<double>{4}, 2),
            (std::vector<double>{0, 2}));
  EXPECT_EQ(nonnegative_least_squares({}, {}, 2), (std::vector<double>{0, 0}));
}

}  // namespace
}  // namespace lockstep::scaling
