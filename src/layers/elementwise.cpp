// Activation functions and addition. On a plain input they are nodes of their own; on a pending one, ReLU and addition
// become part of it if possible.
#include <utility>

#include "layers/layers.h"
#include "layers/pending_normalization.h"
#include "layers/unary_node.h"
#include "lockstep/error.h"
#include "lockstep/ops/activation.h"
#include "lockstep/ops/add.h"
#include "lockstep/ops/glu.h"

namespace lockstep::layers {

namespace {

using graph::kNoTensor;
using graph::Node;
using graph::Phase;
using graph::Run;
using graph::TensorId;

class AddNode final : public Node {
 public:
  AddNode(std::string name, ActivationId a, ActivationId b, ActivationId out)
      : Node(std::move(name), {a, b}, {out}), a_(a), b_(b), out_(out) {}

  void plan(Graph& graph, Backend& backend) override {
    const graph::Activation& y = graph.activation(out_);
    op_ = backend.make(AddDescription{.n_elements = y.shape.n_elements(), .dtype = y.dtype});
    a_data_ = graph.data_of(a_, *this);
    b_data_ = graph.data_of(b_, *this);
    y_ = graph.make_data(out_, *this);
  }
  void plan_backward(Graph& graph) override {
    dy_ = graph.gradient_of(out_, *this);
    // The gradient of `a` can be dy itself, because no other node reads dy after this one.
    graph::Activation& a = graph.activation(a_);
    if (a.needs_gradient && a.gradient == kNoTensor && a_ != b_) {
      a.gradient = dy_;
      da_ = {dy_, GradientMode::overwrite};
    } else {
      da_ = graph.gradient_target(a_, *this);
    }
    db_ = graph.gradient_target(b_, *this);
  }
  void forward(const Run& run) override {
    op_->forward({.a = run.tensor(a_data_), .b = run.tensor(b_data_), .y = run.tensor(y_)}, memory(run), run.stream);
  }
  void backward(const Run& run) override {
    op_->backward({.dy = run.tensor(dy_),
                   .da = run.tensor(da_.tensor),
                   .da_mode = da_.mode,
                   .db = run.tensor(db_.tensor),
                   .db_mode = db_.mode},
                  memory(run), run.stream);
  }
  std::vector<const Op*> ops() const override { return {op_.get()}; }

 private:
  ActivationId a_, b_, out_;
  std::unique_ptr<Add> op_;
  TensorId a_data_ = kNoTensor, b_data_ = kNoTensor, y_ = kNoTensor, dy_ = kNoTensor;
  Graph::GradientTarget da_, db_;
};

}  // namespace

ActivationId activation(Graph& graph, ActivationId x, ActivationFunction function) {
  const graph::Activation& in = graph.activation(x);
  const std::string name = fmt::format("{}.{}", in.name, lockstep::name(function));
  const ActivationId y = graph.add_activation({.name = name, .shape = in.shape, .dtype = in.dtype});
  graph.add_node<UnaryNode<ActivationOp>>(name, x, y, [=](Backend& backend, const graph::Activation& out) {
    return backend.make(
        ActivationDescription{.n_elements = out.shape.n_elements(), .function = function, .dtype = out.dtype});
  });
  return y;
}

ActivationId relu(Graph& graph, ActivationId x) {
  return extend_with_relu(graph, x) ? x : activation(graph, x, ActivationFunction::relu);
}

ActivationId add(Graph& graph, ActivationId a, ActivationId b) {
  const graph::Activation first = graph.activation(a), second = graph.activation(b);
  require(first.shape == second.shape && first.dtype == second.dtype, ErrorCode::internal,
          "{} + {}: shapes {} and {}, types {} and {}; they must be equal", first.name, second.name, first.shape.text(),
          second.shape.text(), name(first.dtype), name(second.dtype));
  if (extend_with_residual(graph, a, b)) return a;
  const std::string name = fmt::format("{}+{}", first.name, second.name);
  const ActivationId y = graph.add_activation({.name = name, .shape = first.shape, .dtype = first.dtype});
  graph.add_node<AddNode>(name, a, b, y);
  return y;
}

ActivationId glu(Graph& graph, ActivationId gate_and_up, ActivationFunction function) {
  const graph::Activation& in = graph.activation(gate_and_up);
  require(in.shape.last() % 2 == 0, ErrorCode::internal, "{}: the last dimension of {} must consist of gate and up",
          in.name, in.shape.text());
  const std::string name = in.name + (function == ActivationFunction::gelu ? ".geglu" : ".swiglu");
  const ActivationId y = graph.add_activation(
      {.name = name, .shape = in.shape.with_dimension(-1, in.shape.last() / 2), .dtype = in.dtype});
  graph.add_node<UnaryNode<Glu>>(name, gate_and_up, y, [=](Backend& backend, const graph::Activation& out) {
    return backend.make(GluDescription{.rows = out.shape.n_elements() / out.shape.last(),
                                       .width = out.shape.last(),
                                       .function = function,
                                       .dtype = out.dtype});
  });
  return y;
}

}  // namespace lockstep::layers
