// The fixed binary tree by which micro-batches are summed, whatever the number of ranks (DESIGN, decision 8).
//
// Over n leaves: cut in the middle, the first half the greater one, and so on. A rank takes a whole subtree, so what is
// left to be summed over ranks is the top of the same tree, and the same again over nodes whose ranks are a subtree.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lockstep/communicator.h"

namespace lockstep::comm {

/// The tree over so many leaves.
SumOrder tree_order(int n_leaves);
/// Leaves of each of `n_subtrees` subtrees that tile the tree, as equal as whole subtrees can be; the first has most.
/// n_subtrees is at most n_leaves.
std::vector<int> subtree_sizes(int n_leaves, int n_subtrees);

/// An order taken apart at consecutive groups of its sources, each of which it sums by itself.
struct GroupedOrder {
  std::vector<SumOrder> inner;  // of each group
  SumOrder outer;               // over groups
};
/// None where a group is not a whole subtree.
std::optional<GroupedOrder> group(const SumOrder& order, std::span<const int> sizes);

/// One source after another: ((0 + 1) + 2) + 3.
SumOrder sequential_order(int n_sources);

}  // namespace lockstep::comm
