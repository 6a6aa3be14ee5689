// Parameter segments cut into blocks, which threads divide among themselves. The cut depends on the segments alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/ops/parameter_segment.h"

namespace lockstep::cpu {

/// A block has at most 16,384 elements: 64 KiB of each arena.
inline std::vector<ParameterSegment> cut_into_blocks(std::span<const ParameterSegment> segments) {
  constexpr std::size_t kBlockElements = 16384;
  std::vector<ParameterSegment> blocks;
  for (const ParameterSegment& segment : segments)
    for (std::size_t done = 0; done < segment.n_elements; done += kBlockElements) {
      ParameterSegment& block = blocks.emplace_back(segment);
      block.begin += done;
      block.n_elements = std::min(kBlockElements, segment.n_elements - done);
    }
  return blocks;
}

inline std::size_t total_elements(std::span<const ParameterSegment> blocks) {
  std::size_t total = 0;
  for (const ParameterSegment& block : blocks) total += block.n_elements;
  return total;
}

}  // namespace lockstep::cpu
