#include "run/slow_rank.h"

#include <algorithm>

namespace lockstep::run {

std::optional<SlowRank> find_slow_rank(std::span<const double> waits, double limit) {
  if (waits.size() < 2) return std::nullopt;
  const auto slowest = std::min_element(waits.begin(), waits.end());
  double sum = 0;
  for (const double wait : waits) sum += wait - *slowest;
  const double waited_for = sum / static_cast<double>(waits.size() - 1);
  if (waited_for <= limit) return std::nullopt;
  return SlowRank{.rank = static_cast<int>(slowest - waits.begin()), .waited_for = waited_for};
}

}  // namespace lockstep::run
