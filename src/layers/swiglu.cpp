#include "lockstep/ops/swiglu.h"

#include "layers/layers.h"
#include "layers/unary_node.h"
#include "lockstep/error.h"

namespace lockstep::layers {

ActivationId swiglu(Graph& graph, ActivationId gate_and_up) {
  const graph::Activation& in = graph.activation(gate_and_up);
  require(in.shape.last() % 2 == 0, ErrorCode::internal, "{}: the last dimension of {} must consist of gate and up",
          in.name, in.shape.text());
  const std::string name = in.name + ".swiglu";
  const ActivationId y = graph.add_activation(
      {.name = name, .shape = in.shape.with_dimension(-1, in.shape.last() / 2), .dtype = in.dtype});
  graph.add_node<UnaryNode<SwiGlu>>(name, gate_and_up, y, [](Backend& backend, const graph::Activation& out) {
    return backend.make(SwiGluDescription{
        .rows = out.shape.n_elements() / out.shape.last(), .width = out.shape.last(), .dtype = out.dtype});
  });
  return y;
}

}  // namespace lockstep::layers
