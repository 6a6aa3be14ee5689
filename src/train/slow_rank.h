// Which rank the others wait for. Of a step a rank spends some part in waiting for sums over ranks: all of them end
// that wait together, so the one that waits least came last, and by so much the others wait for it.
#pragma once

#include <optional>
#include <span>

namespace lockstep::train {

struct SlowRank {
  int rank = 0;
  double waited_for = 0;  // part of the others' time, their mean, 0 to 1
};

/// `waits`: each rank's part of its time in which it waited. The slowest, if it is waited for during more than `limit`.
std::optional<SlowRank> find_slow_rank(std::span<const double> waits, double limit);

}  // namespace lockstep::train
