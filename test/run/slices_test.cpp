// The ranges of samples on which a model was trained, over several runs.
#include "run/slices.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "config/parser.h"

namespace lockstep::run {
namespace {

using List = std::vector<DataRange>;

Config with_range(std::int64_t start, std::int64_t end) {
  Config config;
  config.data.start = start;
  config.data.end = end;
  return config;
}

/// What a checkpoint of such a run records.
nlohmann::json state_of(const Config& config, std::int64_t step, const Slices& slices) {
  nlohmann::json state{{"step", step}, {"configuration", config::learning_yaml(config)}};
  add_slices(slices, state);
  return state;
}

TEST(Slices, AnOrdinaryRunRecordsNothing) {
  const Config all = with_range(0, 0);
  const nlohmann::json state = state_of(all, 7, slices_after(state_of(all, 3, {}), all));
  EXPECT_FALSE(state.contains("slices"));
  EXPECT_FALSE(state.contains("slice_begin"));
  EXPECT_TRUE(slices_before(state, all).earlier.empty());
}

TEST(Slices, AResumedRunAddsTheSliceThatEnded) {
  const Config first = with_range(0, 1000), second = with_range(1000, 2000), third = with_range(2000, 3000);
  const Slices two = slices_after(state_of(first, 50, {}), second);
  EXPECT_EQ(two.earlier, (List{{0, 1000, 50}}));
  EXPECT_EQ(two.begin, 50);
  const nlohmann::json state = state_of(second, 80, two);
  EXPECT_EQ(slices_of(state).earlier, two.earlier);
  EXPECT_EQ(slices_after(state, second).earlier, two.earlier);  // the same run again
  const Slices three = slices_after(state, third);
  EXPECT_EQ(three.earlier, (List{{0, 1000, 50}, {1000, 2000, 30}}));
  EXPECT_EQ(three.begin, 80);
}

TEST(Slices, ARunFromTheWeightsOfAnotherCountsItsOwnStepsFromZero) {
  const Config first = with_range(0, 1000), second = with_range(1000, 2000), third = with_range(2000, 3000);
  const Slices two = slices_before(state_of(first, 50, {}), second);
  EXPECT_EQ(two.earlier, (List{{0, 1000, 50}}));
  EXPECT_EQ(two.begin, 0);
  EXPECT_EQ(slices_before(state_of(second, 30, two), third).earlier, (List{{0, 1000, 50}, {1000, 2000, 30}}));
  EXPECT_EQ(slices_before(state_of(with_range(0, 0), 9, {}), first).earlier, (List{{0, 0, 9}}));
}

TEST(Slices, AnImportedModelHasNone) {
  EXPECT_TRUE(slices_before({{"step", 0}}, with_range(0, 10)).earlier.empty());
  EXPECT_TRUE(slices_of({{"slices", "damaged"}, {"slice_begin", "x"}}).earlier.empty());
}

}  // namespace
}  // namespace lockstep::run
