#include "comm/sum_order.h"

#include <numeric>

#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

int first_half(int n) { return n - n / 2; }

void append_tree(int n_leaves, std::vector<int>& merges) {
  if (n_leaves == 1) {
    merges.push_back(0);
    return;
  }
  append_tree(first_half(n_leaves), merges);
  append_tree(n_leaves - first_half(n_leaves), merges);
  ++merges.back();
}

}  // namespace

SumOrder tree_order(int n_leaves) {
  SumOrder order;
  if (n_leaves > 0) append_tree(n_leaves, order.merges);
  return order;
}

std::vector<int> subtree_sizes(int n_leaves, int n_subtrees) {
  require(n_subtrees >= 1 && n_subtrees <= n_leaves, ErrorCode::internal, "{} subtrees of a tree with {} leaves",
          n_subtrees, n_leaves);
  struct Subtree {
    int n_leaves, depth;
  };
  std::vector<Subtree> subtrees{{n_leaves, 0}};
  while (subtrees.size() < static_cast<std::size_t>(n_subtrees)) {
    // Subtrees are split level by level, and within a level from the last to the first, so that the first one stays the
    // largest.
    auto cut = subtrees.end();
    for (auto it = subtrees.begin(); it != subtrees.end(); ++it) {
      if (it->n_leaves > 1 && (cut == subtrees.end() || it->depth <= cut->depth)) cut = it;
    }
    const Subtree whole = *cut;
    *cut = {whole.n_leaves - first_half(whole.n_leaves), whole.depth + 1};
    subtrees.insert(cut, {first_half(whole.n_leaves), whole.depth + 1});
  }
  std::vector<int> sizes;
  for (const Subtree& subtree : subtrees) sizes.push_back(subtree.n_leaves);
  return sizes;
}

std::optional<GroupedOrder> group(const SumOrder& order, std::span<const int> sizes) {
  require(std::accumulate(sizes.begin(), sizes.end(), 0) == order.size(), ErrorCode::internal,
          "the sizes of the groups do not add up to the {} sources of the order", order.size());
  GroupedOrder grouped;
  auto source = order.merges.begin();
  for (const int size : sizes) {
    SumOrder inner;
    int open = 0;  // the number of this group's partial sums on the stack
    for (int i = 0; i < size; ++i, ++source) {
      const bool is_last = i + 1 == size;
      if (is_last ? *source < open : *source > open) return std::nullopt;
      inner.merges.push_back(is_last ? open : *source);
      open += 1 - inner.merges.back();
      if (is_last) grouped.outer.merges.push_back(*source - inner.merges.back());
    }
    grouped.inner.push_back(std::move(inner));
  }
  return grouped;
}

SumOrder sequential_order(int n_sources) {
  SumOrder order;
  order.merges.assign(static_cast<std::size_t>(n_sources), 1);
  if (n_sources > 0) order.merges[0] = 0;
  return order;
}

}  // namespace lockstep::comm
