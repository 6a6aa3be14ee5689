// The memory of graphs that only compute outputs, one at a time: each arena is as large as the most demanding of the
// graphs needs. Evaluation, prediction, scoring and decoding with a trained model use it. A Replica has its own memory.
#pragma once

#include <memory>
#include <span>

#include "graph/graph.h"

namespace lockstep::graph {

class ForwardArenas {
 public:
  /// Allocates the arenas and binds the graphs, which are planned. `parameters`: ParameterArena::bindings(). Throws
  /// out_of_memory.
  ForwardArenas(std::span<Graph* const> graphs, const Bindings& parameters, Backend& backend);

  /// What the graphs are bound to.
  const Bindings& bindings() const { return bindings_; }

 private:
  std::unique_ptr<Memory> activations_, workspace_, exchange_, cache_, scalars_;
  Bindings bindings_;
};

}  // namespace lockstep::graph
