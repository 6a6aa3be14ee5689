#include "train/autotune.h"

#include "base/clock.h"
#include "lockstep/log.h"

namespace lockstep::train {
namespace {

constexpr double kSecondsBetweenBroadcasts = 0.25;
constexpr double kSecondsBetweenSaves = 10;

/// Rank 0's value on every rank.
bool broadcast_is_timing(World& world, bool is_timing) {
  world.broadcast(std::as_writable_bytes(std::span(&is_timing, 1)), 0);
  return is_timing;
}

}  // namespace

void autotune(World& world, Algorithms& algorithms, const std::function<void()>& plan,
              const std::function<void(const Algorithms::Choices&)>& save) {
  if (world.rank() != 0) {
    while (broadcast_is_timing(world, true)) {
    }
    return;
  }
  const Clock::time_point begin = Clock::now();
  Clock::time_point last_broadcast = begin, last_save = begin;
  int n_timed = 0;
  algorithms.time_unknown([&] {
    ++n_timed;
    if (seconds_since(last_broadcast) > kSecondsBetweenBroadcasts) {
      last_broadcast = Clock::now();
      broadcast_is_timing(world, true);
    }
    if (seconds_since(last_save) > kSecondsBetweenSaves) {
      last_save = Clock::now();
      log::info("{} algorithms timed in {:.0f} s", n_timed, seconds_since(begin));
      save(algorithms.choices());
    }
  });
  plan();
  algorithms.time_no_more();
  save(algorithms.choices());
  broadcast_is_timing(world, false);
}

}  // namespace lockstep::train
