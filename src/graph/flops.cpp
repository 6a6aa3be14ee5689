#include "graph/flops.h"

#include <algorithm>

#include "graph/graph.h"

namespace lockstep::graph {
namespace {

Flops flops_of(const Node& node) {
  const auto* counted = dynamic_cast<const CountsFlops*>(&node);
  return counted ? counted->flops() : Flops{};
}

}  // namespace

double flops_of(const Graph& graph) {
  double flops = 0;
  for (const auto& node : graph.nodes()) flops += flops_of(*node).total();
  return flops;
}

bool flops_are_exact(const Graph& graph) {
  return std::ranges::none_of(graph.nodes(), [](const auto& node) { return flops_of(*node).are_upper_bound; });
}

}  // namespace lockstep::graph
