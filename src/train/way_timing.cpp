#include "train/way_timing.h"

#include "base/clock.h"
#include "lockstep/log.h"

namespace lockstep::train {
namespace {

constexpr double kSecondsBetweenWords = 0.25;  // to the other ranks
constexpr double kSecondsBetweenSaves = 10;

bool tell(World& world, bool goes_on) {
  world.broadcast(std::as_writable_bytes(std::span(&goes_on, 1)), 0);
  return goes_on;
}

}  // namespace

void time_ways(World& world, Algorithms& algorithms, const std::function<void()>& plan,
               const std::function<void(const Algorithms::Choices&)>& save) {
  if (world.rank() != 0) {
    while (tell(world, true)) {
    }
    return;
  }
  const Clock::time_point begin = Clock::now();
  Clock::time_point told = begin, saved = begin;
  int n_ways = 0;
  algorithms.time_unknown([&] {
    ++n_ways;
    if (seconds_since(told) > kSecondsBetweenWords) {
      told = Clock::now();
      tell(world, true);
    }
    if (seconds_since(saved) > kSecondsBetweenSaves) {
      saved = Clock::now();
      log::info("{} ways timed in {:.0f} s", n_ways, seconds_since(begin));
      save(algorithms.choices());
    }
  });
  plan();
  algorithms.time_no_more();
  save(algorithms.choices());
  tell(world, false);
}

}  // namespace lockstep::train
