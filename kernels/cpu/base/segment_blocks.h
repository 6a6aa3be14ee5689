// Parameter segments cut into blocks, which threads divide among themselves. The cut depends on the segments alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/ops/parameter_segment.h"

namespace lockstep::cpu {

/// 64 KiB of each arena.
inline constexpr std::size_t kBlockElements = 16384;

inline std::vector<ParameterSegment> cut_into_blocks(std::span<const ParameterSegment> segments,
                                                     std::size_t block_elements = kBlockElements) {
  std::vector<ParameterSegment> blocks;
  for (const ParameterSegment& segment : segments)
    for (std::size_t done = 0; done < segment.n_elements; done += block_elements) {
      ParameterSegment& block = blocks.emplace_back(segment);
      block.begin += done;
      if (block.stored_begin) *block.stored_begin += done;
      block.n_elements = std::min(block_elements, segment.n_elements - done);
    }
  return blocks;
}

inline std::size_t total_elements(std::span<const ParameterSegment> blocks) {
  std::size_t total = 0;
  for (const ParameterSegment& block : blocks) total += block.n_elements;
  return total;
}

}  // namespace lockstep::cpu
