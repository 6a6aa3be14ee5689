// ranks: 2
// Rank 0 times algorithms for longer than the watchdog's limit; its broadcasts show the other rank that it is working.
#include "train/algorithm_store.h"

#include <chrono>
#include <stdexcept>
#include <thread>

#include "test/comm/test_world.h"

namespace lockstep {
namespace {

using comm::test_world;

TEST(Autotune, OtherRanksWaitLongerThanTheWatchdog) {
  if (test_world.has_started()) GTEST_SKIP() << "needs a world of its own: --gtest_filter='Autotune.*'";
  constexpr double kWatchdogSeconds = 2;
  test_world.start(kWatchdogSeconds);
  Algorithms algorithms;
  int n_saved = 0;
  const std::vector<std::string> names{"one", "two", "three", "four", "five", "six", "seven", "eight"};
  const auto plan = [&] {
    algorithms.choose("an op", names, [](std::size_t i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      return i == 5 ? 1.0 : 2.0;
    });
  };
  train::autotune(*test_world, algorithms, plan, [&] { ++n_saved; });
  const bool is_leader = test_world->rank() == 0;
  EXPECT_EQ(n_saved, is_leader ? 1 : 0);
  EXPECT_EQ(algorithms.choices(), (is_leader ? Algorithms::Choices{{"an op", "six"}} : Algorithms::Choices{}));
  test_world->barrier();
}

TEST(Autotune, TheLogCountsWhatWasNotTimed) {
  Algorithms algorithms;
  algorithms.limit_timing(0);
  const std::vector<std::string> names{"one", "two"};
  const auto never = [](std::size_t) -> double { throw std::logic_error("timed"); };
  testing::internal::CaptureStderr();
  train::autotune(
      *test_world, algorithms,
      [&] {
        for (const char* const key : {"an op", "another op", "an op"}) (void)algorithms.choose(key, names, never);
      },
      [] {});
  const std::string output = testing::internal::GetCapturedStderr();
  EXPECT_EQ(output.find("2 of 2 algorithms were not timed") != std::string::npos, test_world->rank() == 0) << output;
  test_world->barrier();
}

}  // namespace
}  // namespace lockstep
