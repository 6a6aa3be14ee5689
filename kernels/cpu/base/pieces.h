// Parameter segments cut into pieces that threads share. The cut depends on the segments alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/op.h"

namespace lockstep::cpu {

/// Of at most 16,384 elements: 64 KiB of each arena.
inline std::vector<ParameterSegment> cut_into_pieces(std::span<const ParameterSegment> segments) {
  constexpr std::size_t kPieceElements = 16384;
  std::vector<ParameterSegment> pieces;
  for (const ParameterSegment& segment : segments)
    for (std::size_t done = 0; done < segment.n_elements; done += kPieceElements)
      pieces.push_back({segment.begin + done, std::min(kPieceElements, segment.n_elements - done), segment.decay});
  return pieces;
}

inline std::size_t total_elements(std::span<const ParameterSegment> pieces) {
  std::size_t total = 0;
  for (const ParameterSegment& piece : pieces) total += piece.n_elements;
  return total;
}

}  // namespace lockstep::cpu
