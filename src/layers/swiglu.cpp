#include "lockstep/ops/swiglu.h"

#include "layers/layers.h"
#include "lockstep/error.h"

namespace lockstep::layers {

namespace {

using graph::kNoTensor;
using graph::Node;
using graph::Phase;
using graph::Run;
using graph::TensorId;

class SwiGluNode final : public Node {
 public:
  SwiGluNode(std::string name, ActivationId in, ActivationId out)
      : Node(std::move(name), {in}, {out}), in_(in), out_(out) {}

  void plan(Graph& graph, Backend& backend) override {
    const graph::Activation& y = graph.activation(out_);
    op_ = backend.make(
        SwiGluDescription{.rows = y.shape.n_elements() / y.shape.last(), .width = y.shape.last(), .dtype = y.dtype});
    x_ = graph.data_of(in_, *this);
    y_ = graph.make_data(out_, *this);
  }
  void plan_backward(Graph& graph) override {
    dx_ = graph.gradient_target(in_, *this);
    dy_ = graph.gradient_of(out_, *this);
    reads(Phase::backward, x_);
  }
  void forward(const Run& run) override {
    op_->forward({.x = run.tensor(x_), .y = run.tensor(y_)}, memory(run), run.stream);
  }
  void backward(const Run& run) override {
    op_->backward({.x = run.tensor(x_), .dy = run.tensor(dy_), .dx = run.tensor(dx_.tensor), .dx_mode = dx_.mode},
                  memory(run), run.stream);
  }
  const Op* op() const override { return op_.get(); }

 private:
  ActivationId in_, out_;
  std::unique_ptr<SwiGlu> op_;
  TensorId x_ = kNoTensor, y_ = kNoTensor, dy_ = kNoTensor;
  Graph::GradientTarget dx_;
};

}  // namespace

ActivationId swiglu(Graph& graph, ActivationId gate_and_up) {
  const graph::Activation& in = graph.activation(gate_and_up);
  require(in.shape.last() % 2 == 0, ErrorCode::internal, "{}: the last dimension of {} must consist of gate and up",
          in.name, in.shape.text());
  const std::string name = in.name + ".swiglu";
  const ActivationId y = graph.add_activation(
      {.name = name, .shape = in.shape.with_dimension(-1, in.shape.last() / 2), .dtype = in.dtype});
  graph.add_node<SwiGluNode>(name, gate_and_up, y);
  return y;
}

}  // namespace lockstep::layers
