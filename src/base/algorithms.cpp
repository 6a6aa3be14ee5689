#include "lockstep/algorithms.h"

#include <algorithm>

namespace lockstep {

std::size_t Algorithms::choose(const std::string& key, std::span<const std::string> ways,
                               const std::function<double(std::size_t)>& seconds) {
  if (ways.size() == 1) return 0;
  if (const auto known = choices_.find(key); known != choices_.end()) {
    const auto way = std::ranges::find(ways, known->second);
    if (way != ways.end()) return static_cast<std::size_t>(way - ways.begin());
  }
  if (!times_) {
    is_complete_ = false;
    return 0;
  }
  std::size_t best = 0;
  double least = seconds(0);
  for (std::size_t i = 1; i < ways.size(); ++i)
    if (const double found = seconds(i); found < least) {
      least = found;
      best = i;
    }
  choices_[key] = ways[best];
  return best;
}

}  // namespace lockstep
