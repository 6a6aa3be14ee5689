// A range of the elements of an array, for example of an arena, or of a slice that ranks exchange.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace lockstep {

struct ElementRange {
  std::size_t begin = 0, n_elements = 0;

  std::size_t end() const { return begin + n_elements; }
};

/// Elements [bounds[index], bounds[index + 1]), where bounds are ascending.
inline ElementRange range_between(std::span<const std::size_t> bounds, int index) {
  const auto i = static_cast<std::size_t>(index);
  return {bounds[i], bounds[i + 1] - bounds[i]};
}

/// The elements that are in both ranges.
inline ElementRange overlap(const ElementRange& a, const ElementRange& b) {
  const std::size_t begin = std::max(a.begin, b.begin), end = std::max(begin, std::min(a.end(), b.end()));
  return {begin, end - begin};
}

}  // namespace lockstep
