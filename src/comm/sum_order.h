// The order in which the gradients of micro-batches are summed: a binary tree that does not depend on the number of
// ranks (DESIGN, decision 8).
//
// The tree over n leaves is cut in the middle. If n is odd, the first half is the larger one. Each half is cut in the
// same way. A rank owns a whole subtree. The sum over ranks is therefore the top of the same tree, and so is the sum
// over nodes if the ranks of each node own a whole subtree.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lockstep/communicator.h"

namespace lockstep::comm {

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
