// The clock that durations are measured with, and the time of day.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>

namespace lockstep {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Calls `work` repeatedly, at least `least` times and for at least `seconds`. Returns the time of the fastest call,
/// which is never 0.
template <typename Work>
double shortest_seconds(int least, double seconds, const Work& work) {
  double shortest = std::numeric_limits<double>::infinity();
  const Clock::time_point begin = Clock::now();
  for (int done = 0; done < least || seconds_since(begin) < seconds; ++done) {
    const Clock::time_point before = Clock::now();
    work();
    shortest = std::min(shortest, seconds_since(before));
  }
  return std::max(shortest, std::numeric_limits<double>::min());
}

inline double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace lockstep
