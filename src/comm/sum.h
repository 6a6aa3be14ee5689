// Sums over ranks, always in one order, so that the result has the same bits every time.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/communicator.h"
#include "lockstep/dtype.h"

namespace lockstep::comm {

/// Sets every target to the elementwise sum of the sources in `order`. Each has n_elements elements, in fp32, fp64 or
/// bf16, and each addition is rounded to that type. A target may be one of the sources; otherwise they do not overlap.
void sum(std::span<const std::byte* const> sources, std::span<std::byte* const> targets, std::size_t n_elements,
         DType dtype, const SumOrder& order);

/// The part of SumRound::open that belongs to the elements that are summed.
struct OpenSums {
  std::byte* first = nullptr;  // null: the sum is not a round
  std::size_t stride_bytes = 0;
  int n_before = 0;

  std::byte* at(std::size_t entry) const { return first + entry * stride_bytes; }
};
/// From element `begin` of the entries of `round` on.
OpenSums open_sums(const SumRound& round, std::size_t begin, DType dtype);
inline constexpr int kMaxOpenSums = 32;  // enough for any number of sources: a tree of depth 32 has 2^32 leaves
/// A round of a sum. Targets are set to the lowest entry.
void sum(std::span<const std::byte* const> sources, std::span<std::byte* const> targets, std::size_t n_elements,
         DType dtype, std::span<const int> merges, const OpenSums& open);

/// Shard `index` of [0, n_elements), which is cut into `n_shards` of nearly equal size. Each but the last is a multiple
/// of 64 bytes long.
ElementRange shard_of(std::size_t n_elements, std::size_t element_bytes, int n_shards, int index);

/// The memory that one rank needs to receive its shard of a chunk from all `n_ranks`.
std::size_t incoming_shards_bytes(std::size_t chunk_bytes, int n_ranks);
/// The same with buffers for rounded values, if there is a narrow wire type: what a NodeExchange or DeviceExchange
/// allocates.
std::size_t exchange_buffer_bytes(std::size_t chunk_bytes, int n_ranks, DType narrowest_wire);

// The order in which the gradients of micro-batches are summed: a binary tree that does not depend on the number of
// ranks (DESIGN, decision 8).
//
// The tree over n leaves is cut in the middle. If n is odd, the first half is the larger one. Each half is cut in the
// same way. A rank owns a whole subtree. The sum over ranks is therefore the top of the same tree, and so is the sum
// over nodes if the ranks of each node own a whole subtree.

/// The tree over n leaves.
SumOrder tree_order(int n_leaves);
/// The numbers of leaves of `n_subtrees` subtrees that tile the tree. They are as equal as whole subtrees can be; the
/// first one is the largest. n_subtrees is at most n_leaves.
std::vector<int> subtree_sizes(int n_leaves, int n_subtrees);

/// An order split at consecutive groups of its sources: each group is summed by itself, and then the groups are summed.
struct GroupedOrder {
  std::vector<SumOrder> inner;  // within each group
  SumOrder outer;               // over groups
};
/// No value if a group is not a whole subtree.
std::optional<GroupedOrder> group(const SumOrder& order, std::span<const int> sizes);

/// One source after another: ((0 + 1) + 2) + 3.
SumOrder sequential_order(int n_sources);

}  // namespace lockstep::comm
