#include "data/dataset.h"

#include <algorithm>

namespace lockstep::data {

double mean_sample_bytes(const Dataset& set) {
  constexpr std::int64_t kMostSamples = 10'000;
  double fixed = 0;
  bool has_packed = false;
  for (const Field& field : set.fields()) {
    if (field.packing == Packing::packed)
      has_packed = true;
    else
      fixed += static_cast<double>(field.size_bytes());
  }
  const std::int64_t n_all = set.info().n_samples, n = std::min(n_all, kMostSamples);
  if (!has_packed || n == 0) return fixed;
  double packed = 0;
  for (std::int64_t i = 0; i < n; ++i)
    packed += static_cast<double>(Field::packed_bytes(set.packed_bytes(i * n_all / n, 0)));
  return fixed + packed / static_cast<double>(n);
}

}  // namespace lockstep::data
