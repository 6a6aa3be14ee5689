// A parameter's place in the arenas of parameters, gradients and optimizer state. Ops over whole arenas take a list of
// these, in ascending order, and do all of them in one launch.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/element_range.h"

namespace lockstep {

struct ParameterSegment {
  std::size_t begin = 0;  // elements, in arenas that a rank has as a whole
  std::size_t n_elements = 0;
  bool decay = true;                    // weight decay and the trust ratio of LARS apply
  float learning_rate_factor = 1;       // the learning rate of the step is multiplied by it
  std::optional<float> weight_decay{};  // where `decay`; none: the optimizer's
  /// Its place in arenas of which a rank has only a shard; none: `begin`. stored_begin - begin is a multiple of 16.
  std::optional<std::size_t> stored_begin{};

  std::size_t stored() const { return stored_begin.value_or(begin); }
};

/// Norms are summed in tiles of this many elements, so that the sum has the same bits wherever a tile is summed. A tile
/// is never divided among ranks.
inline constexpr std::size_t kTileElements = 4096;

inline std::size_t n_tiles_of(std::size_t n_elements) { return (n_elements + kTileElements - 1) / kTileElements; }

/// The parts of the segments that are in the range. Cut segments keep their properties, but not `stored_begin`.
inline std::vector<ParameterSegment> cut_to(std::span<const ParameterSegment> segments, const ElementRange& range) {
  std::vector<ParameterSegment> out;
  for (const ParameterSegment& segment : segments) {
    const ElementRange common = overlap({segment.begin, segment.n_elements}, range);
    if (common.n_elements == 0) continue;
    ParameterSegment& part = out.emplace_back(segment);
    part.begin = common.begin;
    part.n_elements = common.n_elements;
    part.stored_begin.reset();
  }
  return out;
}

}  // namespace lockstep
