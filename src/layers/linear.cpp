#include <cmath>

#include "layers/layers.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node speaks of little else

class LinearNode final : public Node {
 public:
  LinearNode(std::string name, ActivationId in, ActivationId out, ParameterId weight, ParameterId bias)
      : Node(std::move(name)), in_(in), out_(out), weight_(weight), bias_(bias) {}

  void register_reads(Graph& graph) override { graph.read(in_, *this); }

  void plan(Graph& graph, Backend& backend) override {
    const Activation& x = graph.activation(in_);
    const Shape weight = graph.parameters()[weight_].shape;
    MatmulDescription description{.rows = x.shape.n_elements() / weight[1],
                                  .in_features = weight[1],
                                  .out_features = weight[0],
                                  .dtype = DType::fp32,
                                  .tf32 = graph.options().tf32,
                                  .bias = true,
                                  .input_gradient = x.needs_gradient,
                                  .inference = !graph.training(),
                                  .weight_layout = nullptr};
    graph.choose_layout(weight_, [&] {
      MatmulDescription alike = description;
      alike.rows = description.rows / graph.options().batch * graph.options().layout_batch;
      return backend.matmul(alike)->weight_layout();
    });
    description.weight_layout = graph.parameters()[weight_].layout;
    op_ = backend.matmul(description);
    x_ = graph.data_of(in_, *this);
    y_ = graph.make_data(out_, *this);
  }

  void plan_backward(Graph& graph) override {
    dx_ = graph.gradient_target(in_, *this);
    dy_ = graph.gradient_of(out_, *this);
    graph.memory().use(x_, backward_moment());
  }

  void bind(const Graph& graph, const Bindings& at) override {
    const ParameterTable& table = graph.parameters();
    weights_ = at.parameters + table[weight_].begin;
    biases_ = at.parameters + table[bias_].begin;
    dweights_begin_ = table[weight_].begin;
    dbiases_begin_ = table[bias_].begin;
  }

  void forward(const Run& run) override {
    op_->forward({.x = run.tensor(x_), .weight = weights_, .bias = biases_, .y = run.tensor(y_)}, memory(run),
                 run.stream);
  }

  void backward(const Run& run) override {
    op_->backward({.dy = run.tensor(dy_),
                   .x = run.tensor(x_),
                   .weight = weights_,
                   .dx = run.tensor(dx_.tensor),
                   .dx_mode = dx_.mode,
                   .dweight = run.gradients.arena + dweights_begin_,
                   .dbias = run.gradients.arena + dbiases_begin_,
                   .parameter_mode = run.gradients.mode},
                  memory(run), run.stream);
  }

  const Op* op() const override { return op_.get(); }
  std::vector<ParameterId> parameters() const override { return {bias_, weight_}; }

 private:
  ActivationId in_, out_;
  ParameterId weight_, bias_;
  std::unique_ptr<Matmul> op_;
  TensorId x_ = kNoTensor, y_ = kNoTensor, dy_ = kNoTensor;
  Graph::GradientTarget dx_;
  const float *weights_ = nullptr, *biases_ = nullptr;
  std::size_t dweights_begin_ = 0, dbiases_begin_ = 0;  // in the gradients' arena
};

}  // namespace

ActivationId linear(Graph& graph, ActivationId x, const std::string& name, std::int64_t out_features) {
  const Shape in = graph.activation(x).shape;
  const std::int64_t in_features = in.n_elements() / in[0];
  const Initializer initial{.kind = Initializer::Kind::uniform,
                            .value = 1.0 / std::sqrt(static_cast<double>(in_features))};
  ParameterTable& table = graph.parameters();
  const ParameterId weight =
      table.parameter(name + ".weight", {out_features, in_features}, ParameterKind::weight, initial);
  const ParameterId bias = table.parameter(name + ".bias", {out_features}, ParameterKind::bias, initial);
  const ActivationId y = graph.add_activation({.name = name, .shape = {in[0], out_features}});
  graph.add_node<LinearNode>(name, x, y, weight, bias);
  return y;
}

}  // namespace lockstep::layers
