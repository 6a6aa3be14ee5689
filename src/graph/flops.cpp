#include "graph/flops.h"

#include "graph/graph.h"

namespace lockstep::graph {

double flops_of(const Graph& graph) {
  double flops = 0;
  for (const auto& node : graph.nodes())
    if (const auto* counted = dynamic_cast<const CountsFlops*>(node.get())) flops += counted->flops().total();
  return flops;
}

}  // namespace lockstep::graph
