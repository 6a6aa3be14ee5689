// The order in which the nodes of a step run: an explicit list of (node, phase).
//
// By default every node runs forward, first to last, and then every node that has a backward pass runs backward, last
// to first. Recomputing a block is an edit of this list: the block's nodes run forward once more directly before the
// backward pass of its last node. Tensors that the block has made then need no memory in between, because
// MemoryPlan computes liveness from the positions in this list. The ops and their order of additions stay the same, so
// the results stay bitwise identical (DESIGN, decision 18).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::graph {

/// `recompute` runs a node's forward pass again, between forward and backward.
enum class Phase : std::uint8_t { forward, recompute, backward };

/// `node` runs in `phase`.
struct Entry {
  int node = 0;  // its number in Graph::nodes()
  Phase phase = Phase::forward;
  bool operator==(const Entry&) const = default;
};

class ExecutionOrder {
 public:
  ExecutionOrder() = default;
  /// All nodes forward; then, for those that have a backward pass, backward. Inference: none has one.
  explicit ExecutionOrder(const std::vector<bool>& has_backward);

  /// Runs `nodes`, in ascending order, forward again before the backward pass of the last node up to `last` that has
  /// one. Without such a node nothing changes.
  void recompute(const std::vector<int>& nodes, int last);
  void erase(std::size_t position) { entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(position)); }

  const std::vector<Entry>& entries() const { return entries_; }
  /// The entries before this position are the forward pass.
  std::size_t n_forward() const { return n_forward_; }

 private:
  std::vector<Entry> entries_;
  std::size_t n_forward_ = 0;
};

}  // namespace lockstep::graph
