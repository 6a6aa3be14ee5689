#include "graph/execution_order.h"

#include <algorithm>

namespace lockstep::graph {

ExecutionOrder::ExecutionOrder(const std::vector<bool>& has_backward) : n_forward_(has_backward.size()) {
  const int n_nodes = static_cast<int>(has_backward.size());
  for (int node = 0; node < n_nodes; ++node) entries_.push_back({node, Phase::forward});
  for (int node = n_nodes; node-- > 0;)
    if (has_backward[static_cast<std::size_t>(node)]) entries_.push_back({node, Phase::backward});
}

void ExecutionOrder::recompute(const std::vector<int>& nodes, int last) {
  const auto before =
      std::find_if(entries_.begin() + static_cast<std::ptrdiff_t>(n_forward_), entries_.end(),
                   [&](const Entry& entry) { return entry.phase == Phase::backward && entry.node <= last; });
  if (before == entries_.end()) return;
  std::vector<Entry> again;
  for (const int node : nodes) again.push_back({node, Phase::recompute});
  entries_.insert(before, again.begin(), again.end());
}

}  // namespace lockstep::graph
