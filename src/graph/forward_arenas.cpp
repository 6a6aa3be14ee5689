#include "graph/forward_arenas.h"

#include <algorithm>

#include "lockstep/ops/step_scalars.h"

namespace lockstep::graph {

ForwardArenas::ForwardArenas(std::span<Graph* const> graphs, const Bindings& parameters, Backend& backend)
    : bindings_(parameters) {
  const auto allocate = [&](const char* name, const auto& bytes_of) {
    std::size_t size_bytes = 0;
    for (const Graph* graph : graphs) size_bytes = std::max(size_bytes, bytes_of(*graph));
    return size_bytes > 0 ? backend.allocate(size_bytes, name) : nullptr;
  };
  const auto data_of = [](const std::unique_ptr<Memory>& memory) {
    return memory ? static_cast<std::byte*>(memory->data()) : nullptr;
  };
  activations_ = allocate("activations", [](const Graph& graph) { return graph.memory().size_bytes(); });
  workspace_ = allocate("workspace", [](const Graph& graph) { return graph.workspace_bytes(); });
  exchange_ = allocate("loss", [](const Graph& graph) { return graph.exchange_bytes(); });
  cache_ = allocate("keys and values", [](const Graph& graph) { return graph.cache_bytes(); });
  scalars_ = backend.allocate(sizeof(StepScalars), "scalars");
  bindings_.activations = data_of(activations_);
  bindings_.workspace = data_of(workspace_);
  bindings_.exchange = data_of(exchange_);
  bindings_.cache = data_of(cache_);
  bindings_.scalars = static_cast<StepScalars*>(scalars_->data());
  for (Graph* graph : graphs) graph->bind(bindings_);
}

}  // namespace lockstep::graph
