#include "lockstep/algorithms.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep {

std::size_t Algorithms::choose(const std::string& key, std::span<const std::string> names,
                               const std::function<double(std::size_t)>& seconds) {
  if (names.size() == 1) return 0;
  if (const auto known = choices_.find(key); known != choices_.end()) {
    const auto match = std::ranges::find(names, known->second);
    if (match != names.end()) return static_cast<std::size_t>(match - names.begin());
  }
  if (!times_) {
    is_complete_ = false;
    return 0;
  }
  std::size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < names.size(); ++i) {
    try {
      if (const double found = seconds(i); found < least) {
        least = found;
        best = i;
      }
    } catch (const Error& error) {
      log::write_to_file(log::Level::info, fmt::format("{}: {} is not available: {}", key, names[i], error.what()));
    }
    if (after_each_) after_each_();
  }
  if (std::isfinite(least)) choices_[key] = names[best];
  return best;
}

}  // namespace lockstep
