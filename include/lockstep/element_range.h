// A range of the elements of an array, for example of an arena, or of a slice that ranks exchange.
#pragma once

#include <algorithm>
#include <cstddef>

namespace lockstep {

struct ElementRange {
  std::size_t begin = 0, n_elements = 0;

  std::size_t end() const { return begin + n_elements; }
};

/// Shard `index` of [0, n_elements), of which all shards are equal.
inline ElementRange equal_shard(std::size_t n_elements, int n_shards, int index) {
  const std::size_t length = n_elements / static_cast<std::size_t>(n_shards);
  return {static_cast<std::size_t>(index) * length, length};
}

/// The elements that are in both ranges.
inline ElementRange overlap(const ElementRange& a, const ElementRange& b) {
  const std::size_t begin = std::max(a.begin, b.begin), end = std::max(begin, std::min(a.end(), b.end()));
  return {begin, end - begin};
}

}  // namespace lockstep
