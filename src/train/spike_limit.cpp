#include "train/spike_limit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace lockstep::train {

float SpikeLimit::value() const {
  if (z_ == 0 || n_ < kMinLosses) return std::numeric_limits<float>::infinity();
  const std::span<const double> known(losses_.data(), std::min(n_, kWindow));
  const auto count = static_cast<double>(known.size());
  double mean = 0, variance = 0;
  for (const double loss : known) mean += loss / count;
  for (const double loss : known) variance += (loss - mean) * (loss - mean) / count;
  return static_cast<float>(mean + z_ * std::max(std::sqrt(variance), 0.01 * std::abs(mean)));
}

}  // namespace lockstep::train
