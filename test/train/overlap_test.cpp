// ranks: 2
// timeout: 300
// sanitizers: no
// cores: all
// Communication overlaps with the backward pass: with buckets of 4 MiB and a communicator that sleeps 20 ms per bucket,
// the median step grows by less than 40 % of the sum of the sleeps. Steps with and without sleeps alternate, and the
// median is that of the differences between neighbours, so that other load on the machine affects both. If the load is
// too high, there are up to three rounds; without overlap none of them passes.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "test/comm/test_world.h"
#include "test/support/emulator.h"
#include "test/train/small_run.h"

namespace lockstep {
namespace {

using comm::test_world;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

TEST(Overlap, SleepsHideBehindBackward) {
  if (test::in_emulator()) GTEST_SKIP() << "20 ms are less than the noise of a step in an emulator";
  Config config = test::small_config(32, 32 * test_world->size());
  config.model.width = 64;
  config.comm.bucket_mb = 4;
  Config sleepy = config;
  sleepy.comm.sleep_ms = 20;
  const auto backend = make_backend({.device = "cpu", .threads = 1}),
             other = make_backend({.device = "cpu", .threads = 1});
  const auto communicator = comm::make_communicator(config.comm, *test_world, *backend);
  const auto sleepy_communicator = comm::make_communicator(sleepy.comm, *test_world, *other);
  test::SmallRun plain(config, *backend, *communicator), slow(sleepy, *other, *sleepy_communicator);
  const double sleeps = 0.020 * static_cast<double>(slow.plan().buckets().size());
  const auto timed = [&](test::SmallRun& run, int step, std::vector<double>& seconds) {
    test_world->barrier();
    const auto begin = std::chrono::steady_clock::now();
    run.step(step);
    if (step > 0) seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  };
  bool failed = true;
  for (int round = 0; round < 3 && failed; ++round) {
    std::vector<double> plain_seconds, slow_seconds, differences;
    for (int step = 0; step < 12; ++step) {
      timed(plain, step, plain_seconds);
      timed(slow, step, slow_seconds);
    }
    for (std::size_t i = 0; i < slow_seconds.size(); ++i) differences.push_back(slow_seconds[i] - plain_seconds[i]);
    const double grown = median(differences);
    if (test_world->rank() == 0)
      std::printf(
          "%zu buckets: %.0f ms of sleeps, median step %.0f ms without and %.0f ms with: %.0f %% of them exposed\n",
          slow.plan().buckets().size(), 1e3 * sleeps, 1e3 * median(plain_seconds), 1e3 * median(slow_seconds),
          100 * grown / sleeps);
    failed = test_world->any((test_world->rank() == 0 && grown > 0.4 * sleeps) || slow.plan().buckets().size() < 5);
  }
  EXPECT_FALSE(failed);
  test_world->barrier();
}

}  // namespace
}  // namespace lockstep
