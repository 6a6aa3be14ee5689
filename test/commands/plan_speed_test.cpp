// What `lockstep plan --model` predicts, with a cost model whose figures can be worked out by hand.
#include "commands/plan_speed.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/file.h"

namespace lockstep::commands {
namespace {

/// 1 s and 0.5 s per unit; 4 units are a sample; each bucket costs 1 s per hop between nodes; nothing is hidden.
class PlannedCosts : public testing::Test {
 protected:
  PlannedCosts() {
    write({{.ranks = 1, .nodes = 1, .samples_per_rank = 8}, {.ranks = 2, .nodes = 2, .samples_per_rank = 4}});
  }
  ~PlannedCosts() override { std::filesystem::remove(path_); }

  void write(const std::vector<scaling::CostSize>& fitted, double cores = 0, bool is_one_machine = false) const {
    const scaling::CostModel model{.fixed_seconds = 1,
                                   .sample_seconds = 0.5,
                                   .node_hop_seconds = 1,
                                   .data_seconds = 0.25,
                                   .exchanged = {.bytes = 1e6, .buckets = 7},
                                   .unit = "tokens",
                                   .units_per_sample = 4,
                                   .cores = cores,
                                   .is_one_machine = is_one_machine,
                                   .fitted = fitted};
    replace_file(path_, scaling::json_of(model).dump());
  }
  PlannedCost cost(int ranks, int nodes) const {
    return planned_cost(path_, ranks, nodes, 8, {.bytes = 1e3, .buckets = 3});
  }

 private:
  std::string path_ = testing::TempDir() + "/plan_cost_model.json";
};

TEST_F(PlannedCosts, AreThoseOfThePlan) {
  const PlannedCost two = cost(2, 2);
  EXPECT_DOUBLE_EQ(two.prediction.compute_seconds, 1 + 0.5 * 4 * 8 / 2);
  EXPECT_DOUBLE_EQ(two.prediction.exposed_seconds, 2 * 3) << "3 buckets of 2 hops";
  EXPECT_DOUBLE_EQ(two.prediction.step_seconds(), 9 + 6 + 0.25);
  // 16 units per rank, compared with 8 units in 5.25 s.
  EXPECT_EQ(two.baseline_ranks, 1);
  EXPECT_DOUBLE_EQ(two.efficiency, 16 / 15.25 / (8 / 5.25));
}

TEST_F(PlannedCosts, AreThoseOfTheMachinesOfTheStudy) {
  const std::vector<scaling::CostSize> fitted = {{.ranks = 1, .nodes = 1, .samples_per_rank = 8}};
  const double alone = 1 + 0.5 * 4 * 8 / 8;
  EXPECT_DOUBLE_EQ(cost(8, 4).prediction.compute_seconds, alone) << "the cores are not known";
  write(fitted, /*cores=*/2);
  EXPECT_DOUBLE_EQ(cost(8, 4).prediction.compute_seconds, alone) << "2 ranks on each node of 2 cores";
  EXPECT_DOUBLE_EQ(cost(8, 2).prediction.compute_seconds, 2 * alone);
  write(fitted, /*cores=*/2, /*is_one_machine=*/true);
  EXPECT_DOUBLE_EQ(cost(8, 4).prediction.compute_seconds, 4 * alone);
  EXPECT_NE(text_of(cost(8, 4)).find("4 ranks per core: all nodes share"), std::string::npos) << text_of(cost(8, 4));
  EXPECT_EQ(json_of(cost(8, 4))["sharing"], 4);
  write(fitted, /*cores=*/0.25);  // a container that may use part of a core
  EXPECT_DOUBLE_EQ(cost(8, 8).prediction.compute_seconds, alone);
  EXPECT_DOUBLE_EQ(cost(8, 4).prediction.compute_seconds, 2 * alone);
}

TEST_F(PlannedCosts, KnowTheNetworkOnlyIfTheStudyDid) {
  EXPECT_TRUE(cost(2, 2).knows_network);
  write({{.ranks = 1, .nodes = 1, .samples_per_rank = 8}, {.ranks = 2, .nodes = 1, .samples_per_rank = 4}});
  EXPECT_FALSE(cost(2, 2).knows_network);
  EXPECT_TRUE(cost(2, 1).knows_network);
  EXPECT_NE(text_of(cost(2, 2)).find("no case on several nodes"), std::string::npos);
}

TEST_F(PlannedCosts, AreShownInReadableUnits) {
  PlannedCost two = cost(2, 2);
  two.steps_per_epoch = 4;
  two.steps = 1000;
  EXPECT_DOUBLE_EQ(two.epoch_seconds(), 61);
  EXPECT_DOUBLE_EQ(two.node_hours(), 2 * 15250.0 / 3600);
  const std::string text = text_of(two);
  for (const char* part :
       {"step        15.2500 s", "epoch       61 s (4 steps)", "training    4.24 h (1000 steps), 8.47 node-hours",
        "efficiency  69 % of the speed per rank on 1 rank"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  two.steps_per_epoch = 100;
  EXPECT_NE(text_of(two).find("epoch       25.4 min"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::commands
