// Finds the rank that the others wait for. In each step a rank spends some time waiting for sums over ranks. All ranks
// end that wait together, so the rank that waits least came last, and the others wait for it by the difference.
#pragma once

#include <optional>
#include <span>

namespace lockstep::run {

struct SlowRank {
  int rank = 0;
  double waited_for = 0;  // part of the other ranks' time, on average, 0 to 1
};

/// `waits`: the part of its time in which each rank waited. Returns the slowest rank if the others wait for it during
/// more than `limit` of their time.
std::optional<SlowRank> find_slow_rank(std::span<const double> waits, double limit);

}  // namespace lockstep::run
