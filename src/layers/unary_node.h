// The node of an op with one input and one output, whose backward pass reads the input and the gradient of the output.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "graph/graph.h"

namespace lockstep::layers {

template <typename Op>
class UnaryNode final : public graph::Node {
 public:
  /// Makes the op for the output, whose shape and type are known.
  using Make = std::function<std::unique_ptr<Op>(Backend& backend, const graph::Activation& out)>;

  UnaryNode(std::string name, graph::ActivationId in, graph::ActivationId out, Make make)
      : Node(std::move(name), {in}, {out}), in_(in), out_(out), make_(std::move(make)) {}

  void plan(graph::Graph& graph, Backend& backend) override {
    op_ = make_(backend, graph.activation(out_));
    x_ = graph.data_of(in_, *this);
    y_ = graph.make_data(out_, *this);
  }
  void plan_backward(graph::Graph& graph) override {
    dx_ = graph.gradient_target(in_, *this);
    dy_ = graph.gradient_of(out_, *this);
    reads(graph::Phase::backward, x_);
  }
  void forward(const graph::Run& run) override {
    op_->forward({.x = run.tensor(x_), .y = run.tensor(y_)}, memory(run), run.stream);
  }
  void backward(const graph::Run& run) override {
    op_->backward({.x = run.tensor(x_), .dy = run.tensor(dy_), .dx = run.tensor(dx_.tensor), .dx_mode = dx_.mode},
                  memory(run), run.stream);
  }
  std::vector<const lockstep::Op*> ops() const override { return {op_.get()}; }

 private:
  graph::ActivationId in_, out_;
  Make make_;
  std::unique_ptr<Op> op_;
  graph::TensorId x_ = graph::kNoTensor, y_ = graph::kNoTensor, dy_ = graph::kNoTensor;
  graph::Graph::GradientTarget dx_;
};

}  // namespace lockstep::layers
