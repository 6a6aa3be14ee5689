// Which cases a study has, their order, and the batch and keys of each.
#include "scaling/case_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "config/parser.h"
#include "lockstep/error.h"

namespace lockstep::scaling {
namespace {

void expect_refused(const std::function<void()>& work, const std::string& part) {
  try {
    work();
    ADD_FAILURE() << "accepted; expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

std::vector<Size> four_sizes() { return {{1, 1}, {2, 1}, {4, 1}, {8, 2}}; }

std::vector<std::string> names_of(const std::vector<Case>& cases) {
  std::vector<std::string> names;
  for (const Case& each : cases) names.push_back(each.name);
  return names;
}

TEST(ScalingSizes, AreNumbersInAscendingOrder) {
  EXPECT_EQ(sizes_in("8,1,2", "--ranks"), (std::vector<int>{1, 2, 8}));
  for (const char* wrong : {"", "1,", ",1", "0", "-1", "1 2", "two", "1,2x", "1000001", "99999999999999999999"})
    expect_refused([&] { sizes_in(wrong, "--nodes"); }, "--nodes: expected numbers");
  expect_refused([] { sizes_in("2,1,2", "--ranks", "use --repeat"); }, "--ranks: 2 is given twice; use --repeat");
  expect_refused([] { sizes_in("8,8", "--predict"); }, "--predict: 8 is given twice; give each number once");
}

TEST(ScalingSizes, FillTheirNodes) {
  const auto of_nodes = sizes_of({1, 4}, true, 4);
  EXPECT_EQ(of_nodes[1].ranks, 16);
  EXPECT_EQ(of_nodes[1].nodes, 4);
  const auto of_ranks = sizes_of({1, 2, 8}, false, 2);
  EXPECT_EQ(of_ranks[0].nodes, 1);
  EXPECT_EQ(of_ranks[1].nodes, 1);
  EXPECT_EQ(of_ranks[2].nodes, 4);
  EXPECT_EQ(sizes_of({8}, false, 0).front().nodes, 1);
  expect_refused([] { sizes_of({3}, false, 2); }, "3 ranks do not fill nodes of 2");
}

TEST(ScalingCases, AreShuffledWithinEachRepeat) {
  const auto cases = make_cases(four_sizes(), 8, 1);
  ASSERT_EQ(cases.size(), 32U);
  std::set<std::string> names;
  bool has_other_order = false;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(cases[i].repeat, static_cast<int>(i / 4) + 1);
    names.insert(cases[i].name);
    has_other_order = has_other_order || cases[i].ranks != four_sizes()[i % 4].ranks;
  }
  EXPECT_EQ(names.size(), 32U);
  EXPECT_TRUE(names.contains("ranks-0008-repeat-3"));
  EXPECT_TRUE(has_other_order);
}

TEST(ScalingCases, HaveAnOrderThatDependsOnTheSeedOnly) {
  EXPECT_EQ(names_of(make_cases(four_sizes(), 5, 7)), names_of(make_cases(four_sizes(), 5, 7)));
  EXPECT_NE(names_of(make_cases(four_sizes(), 5, 7)), names_of(make_cases(four_sizes(), 5, 8)));
}

// Each size is first, second and so on about equally often, so that drift affects all of them alike.
TEST(ScalingCases, AreFirstEquallyOften) {
  constexpr int kRepeats = 4000;
  const auto cases = make_cases(four_sizes(), kRepeats, 3);
  for (const Size& size : four_sizes()) {
    int n_first = 0;
    for (std::size_t i = 0; i < cases.size(); i += 4) n_first += cases[i].ranks == size.ranks ? 1 : 0;
    EXPECT_NEAR(n_first, kRepeats / 4, 150) << size.ranks;
  }
}

TEST(ScalingBatch, StaysWhereTheConfigurationSaysSo) {
  const Config of_global = config::parse({"data.train=synthetic", "train.global_batch=48"});
  EXPECT_EQ(scaling_of(of_global), Scaling::strong);
  EXPECT_EQ(batch_of(of_global, Scaling::strong, 2), 48);
  EXPECT_EQ(batch_of(of_global, Scaling::weak, 2), 24);
  expect_refused([&] { batch_of(of_global, Scaling::weak, 5); }, "cannot be divided among 5 ranks");
  const Config of_rank = config::parse({"data.train=synthetic", "train.batch_per_rank=8", "train.accumulate=3"});
  EXPECT_EQ(scaling_of(of_rank), Scaling::weak);
  EXPECT_EQ(batch_of(of_rank, Scaling::weak, 2), 8);
  EXPECT_EQ(batch_of(of_rank, Scaling::strong, 2), 48);
  const Config automatic = config::parse({"data.train=synthetic", "train.batch_per_rank=auto"});
  expect_refused([&] { batch_of(automatic, Scaling::weak, 1); }, "must be the same in all cases");
}

TEST(ScalingCases, HaveAConfigurationOfTheirOwn) {
  const Config config = config::parse({"data.train=synthetic", "data.validation=synthetic", "train.global_batch=48",
                                       "checkpoint.every_steps=5", "train.epochs=2", "optimizer.learning_rate=0.5"});
  Study study;
  study.directory = "/studies/a";
  study.scaling = Scaling::weak;
  study.batch = 24;
  study.steps = 30;
  const Case a_case{.name = "ranks-0004-repeat-1", .ranks = 4};
  const Config weak = configuration_of(study, a_case, config);
  EXPECT_EQ(weak.run.path(), std::string("/studies/a/cases/ranks-0004-repeat-1/run"));
  EXPECT_EQ(weak.train.batch_per_rank, 24);
  EXPECT_EQ(weak.train.global_batch, 0);
  EXPECT_EQ(weak.train.max_steps, 30);
  EXPECT_EQ(weak.train.epochs, 30) << "an epoch may have only one step";
  EXPECT_EQ(weak.data.validation, "");
  EXPECT_EQ(weak.checkpoint.every_steps, 0);
  EXPECT_EQ(weak.checkpoint.every_epochs, 0);
  EXPECT_EQ(weak.log.every_steps, 1);
  EXPECT_EQ(weak.optimizer.learning_rate, 0.5);
  study.scaling = Scaling::strong;
  study.batch = 48;
  EXPECT_EQ(configuration_of(study, a_case, config).train.global_batch, 48);
  EXPECT_EQ(configuration_of(study, a_case, config).train.batch_per_rank, 0);
  study.batch = 3;
  expect_refused([&] { configuration_of(study, a_case, config); }, "too few samples for 4 ranks");
}

}  // namespace
}  // namespace lockstep::scaling
