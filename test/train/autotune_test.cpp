// ranks: 2
// Rank 0 times algorithms for longer than the watchdog waits; the broadcasts show the other rank that it is at work.
#include <chrono>
#include <cstdio>
#include <thread>

#include "comm/world.h"
#include "train/autotune.h"

int main(int argc, char** argv) {
  using namespace lockstep;  // NOLINT
  constexpr double kWatchdogSeconds = 2;
  const auto world = comm::start_world(&argc, &argv, kWatchdogSeconds);
  Algorithms algorithms;
  int n_saved = 0;
  const std::vector<std::string> names{"one", "two", "three", "four", "five", "six", "seven", "eight"};
  const auto plan = [&] {
    algorithms.choose("an op", names, [](std::size_t i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      return i == 5 ? 1.0 : 2.0;
    });
  };
  train::autotune(*world, algorithms, plan, [&](const Algorithms::Choices&) { ++n_saved; });
  const bool is_leader = world->rank() == 0;
  bool failed = n_saved != (is_leader ? 1 : 0);
  failed =
      failed || algorithms.choices() != (is_leader ? Algorithms::Choices{{"an op", "six"}} : Algorithms::Choices{});
  if (failed) std::printf("rank %d: saved %d times\n", world->rank(), n_saved);
  failed = world->any(failed);
  world->barrier();
  return failed ? 1 : 0;
}
