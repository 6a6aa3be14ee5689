// ranks: 2
// timeout: 300
// sanitizers: no
// Communication hides behind backward: with buckets of 4 MiB and a communicator that sleeps 20 ms a bucket, the median
// step grows by under 40 % of the sum of the sleeps. Steps with and without sleeps alternate, and the median is that of
// the differences of neighbours, so that what else the machine does falls on both. Where it does too much, up to three
// rounds: without overlap none passes.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "test/train/small_run.h"

namespace {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  using namespace lockstep;  // NOLINT
  const auto world = comm::start_world(&argc, &argv);
  Config config = test::small_config(32, 32 * world->size());
  config.comm.bucket_mb = 4;
  Config sleepy = config;
  sleepy.comm.sleep_ms = 20;
  const auto backend = make_backend({.device = "cpu", .threads = 1}),
             other = make_backend({.device = "cpu", .threads = 1});
  const auto communicator = comm::make_communicator(config.comm, *world, *backend);
  const auto sleepy_communicator = comm::make_communicator(sleepy.comm, *world, *other);
  test::SmallRun plain(config, *backend, *communicator), slow(sleepy, *other, *sleepy_communicator);
  const double sleeps = 0.020 * static_cast<double>(slow.plan().buckets().size());
  const auto timed = [&](test::SmallRun& run, int step, std::vector<double>& seconds) {
    world->barrier();
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
    if (world->rank() == 0)
      std::printf(
          "%zu buckets: %.0f ms of sleeps, median step %.0f ms without and %.0f ms with: %.0f %% of them exposed\n",
          slow.plan().buckets().size(), 1e3 * sleeps, 1e3 * median(plain_seconds), 1e3 * median(slow_seconds),
          100 * grown / sleeps);
    failed = world->any((world->rank() == 0 && grown > 0.4 * sleeps) || slow.plan().buckets().size() < 5);
  }
  world->barrier();
  return failed ? 1 : 0;
}
