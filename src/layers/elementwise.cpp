// ReLU and addition, of a pending activation: they become part of what is pending.
#include "layers/layers.h"
#include "layers/pending_normalization.h"
#include "lockstep/error.h"

namespace lockstep::layers {

ActivationId relu(Graph& graph, ActivationId x) {
  require(extend_with_relu(graph, x), ErrorCode::internal, "{}: ReLU follows a batch norm or an addition",
          graph.activation(x).name);
  return x;
}

ActivationId add(Graph& graph, ActivationId a, ActivationId b) {
  require(graph.activation(a).shape == graph.activation(b).shape && extend_with_residual(graph, a, b),
          ErrorCode::internal, "{} + {}: the first is a batch norm without ReLU, both of one shape",
          graph.activation(a).name, graph.activation(b).name);
  return a;
}

}  // namespace lockstep::layers
