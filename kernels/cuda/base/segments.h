// Parameter segments as a kernel argument. A block processes one tile, which is at most kTileElements of one segment,
// and finds it in the table by its number. The table travels in the launch, so that an op needs no memory of its own:
// up to 192 segments a launch (ResNet-50 has 161), more in further launches.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/cuda/base/launch.h"
#include "kernels/cuda/base/rows.h"
#include "lockstep/ops/parameter_segment.h"

namespace lockstep::cuda {

inline constexpr unsigned kTileThreads = 256;

struct SegmentTable {
  static constexpr unsigned kCapacity = 192;
  static constexpr std::uint32_t kDecays = 0x80000000u;

  std::uint64_t base = 0;           // where this table begins in the arena, in elements
  std::uint64_t stored_shift = 0;   // added to an element's place for its place in sharded arenas; wraps around
  std::uint32_t first_tile = 0;     // tiles and segments of the tables before this one
  std::uint32_t first_segment = 0;  //
  std::uint32_t n_tiles = 0;
  std::uint32_t n_segments = 0;
  std::uint32_t begin[kCapacity] = {};  // elements after `base`
  std::uint32_t n_elements[kCapacity] = {};
  std::uint32_t tile[kCapacity] = {};  // its first tile in this table; highest bit: kDecays
  float learning_rate_factor[kCapacity] = {};
  float weight_decay[kCapacity] = {};  // 0 where it does not decay, or has none of its own
};
static_assert(sizeof(SegmentTable) <= 3968, "a kernel may have 4 KiB of arguments, including those besides the table");

struct Tile {
  std::size_t begin = 0;  // elements of the arena
  unsigned n_elements = 0;
  unsigned segment = 0;  // of this table
  bool decays = false;
  float learning_rate_factor = 1, weight_decay = 0;
};

/// Of this block.
__device__ inline Tile find_tile(const SegmentTable& table) {
  unsigned low = 0, high = table.n_segments;  // the last segment whose first tile is not after this one
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    if ((table.tile[middle] & ~SegmentTable::kDecays) <= blockIdx.x)
      low = middle;
    else
      high = middle;
  }
  constexpr unsigned kLength = kTileElements;
  const unsigned done = (blockIdx.x - (table.tile[low] & ~SegmentTable::kDecays)) * kLength;
  const unsigned left = table.n_elements[low] - done;
  return {.begin = table.base + table.begin[low] + done,
          .n_elements = left < kLength ? left : kLength,
          .segment = low,
          .decays = (table.tile[low] & SegmentTable::kDecays) != 0,
          .learning_rate_factor = table.learning_rate_factor[low],
          .weight_decay = table.weight_decay[low]};
}

/// Calls f(width, i) for elements [i, i + width) of the tile, each once: kWidth at a time where the arenas
/// (`are_aligned`) and the segment allow accesses of 16 bytes, otherwise (and for the last few) one by one.
template <unsigned kWidth, typename F>
__device__ void for_elements(const Tile& tile, bool are_aligned, const F& f) {
  unsigned done = 0;
  if (are_aligned && tile.begin % kWidth == 0) {
    done = tile.n_elements / kWidth * kWidth;
    for (unsigned i = kWidth * threadIdx.x; i < done; i += kWidth * blockDim.x)
      f(std::integral_constant<int, int{kWidth}>{}, tile.begin + i);
  }
  for (unsigned i = done + threadIdx.x; i < tile.n_elements; i += blockDim.x)
    f(std::integral_constant<int, 1>{}, tile.begin + i);
}

/// This thread's part of the sum of squares over a tile. Threads take groups of 16 bytes in turn, whether or not a
/// group can be read at once, so that the order is the same.
template <typename T>
__device__ double sum_of_squares(const T* x, const Tile& tile, bool are_aligned) {
  constexpr unsigned kGroup = Pack<T>::kSize;
  const bool by_groups = are_aligned && tile.begin % kGroup == 0;
  double sum = 0;
  for (unsigned i = kGroup * threadIdx.x; i < tile.n_elements; i += kGroup * kTileThreads) {
    Floats<kGroup> group = {};
    const T* source = x + tile.begin + i;
    const unsigned n = tile.n_elements - i;
    if (by_groups && n >= kGroup) {
      group = load_floats<kGroup>(source);
    } else {
#pragma unroll
      for (unsigned j = 0; j < kGroup; ++j)
        if (j < n) group.values[j] = to_float(source[j]);
    }
#pragma unroll
    for (float value : group.values) sum += double{value} * value;
  }
  return sum;
}

inline std::vector<SegmentTable> make_segment_tables(std::span<const ParameterSegment> segments) {
  constexpr std::size_t kLimit = 0xffffffffu;
  std::vector<SegmentTable> tables;
  std::uint32_t n_tiles = 0, n_segments = 0;
  for (const ParameterSegment& segment : segments) {
    require(segment.n_elements <= kLimit, ErrorCode::not_supported,
            "a parameter of {} elements; at most {} are possible", segment.n_elements, kLimit);
    if (segment.n_elements == 0) continue;
    const std::uint64_t shift = segment.stored() - segment.begin;
    const bool fits = !tables.empty() && tables.back().n_segments < SegmentTable::kCapacity &&
                      segment.begin >= tables.back().base && segment.begin - tables.back().base <= kLimit &&
                      shift == tables.back().stored_shift;
    if (!fits)
      tables.push_back(
          {.base = segment.begin, .stored_shift = shift, .first_tile = n_tiles, .first_segment = n_segments});
    SegmentTable& table = tables.back();
    table.begin[table.n_segments] = static_cast<std::uint32_t>(segment.begin - table.base);
    table.n_elements[table.n_segments] = static_cast<std::uint32_t>(segment.n_elements);
    table.tile[table.n_segments] = table.n_tiles | (segment.decay ? SegmentTable::kDecays : 0);
    table.learning_rate_factor[table.n_segments] = segment.learning_rate_factor;
    table.weight_decay[table.n_segments] = segment.decay ? segment.weight_decay.value_or(0.0f) : 0.0f;
    const auto tiles = static_cast<std::uint32_t>((segment.n_elements + kTileElements - 1) / kTileElements);
    table.n_tiles += tiles;
    table.n_segments += 1;
    n_tiles += tiles;
    n_segments += 1;
  }
  return tables;
}

inline std::size_t count_tiles(std::span<const SegmentTable> tables) {
  return tables.empty() ? 0 : std::size_t{tables.back().first_tile} + tables.back().n_tiles;
}
inline std::size_t count_segments(std::span<const SegmentTable> tables) {
  return tables.empty() ? 0 : std::size_t{tables.back().first_segment} + tables.back().n_segments;
}

}  // namespace lockstep::cuda
