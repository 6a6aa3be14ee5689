// Sums over ranks, always in one order, so that the result has the same bits every time.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/communicator.h"
#include "lockstep/dtype.h"

namespace lockstep::comm {

/// Sets every target to the elementwise sum of the sources in `order`. Each has n_elements elements, in fp32 or fp64. A
/// target may be one of the sources; otherwise they do not overlap.
void sum(std::span<const std::byte* const> sources, std::span<std::byte* const> targets, std::size_t n_elements,
         DType dtype, const SumOrder& order);

/// Shard `index` of [0, n_elements), which is cut into `n_shards` of nearly equal size. Each but the last is a multiple
/// of 64 bytes long.
ElementRange shard_of(std::size_t n_elements, std::size_t element_bytes, int n_shards, int index);

/// The memory that one rank needs to receive its shard of a chunk from all `n_ranks`.
std::size_t incoming_shards_bytes(std::size_t chunk_bytes, int n_ranks);

}  // namespace lockstep::comm
