#include <algorithm>
#include <cmath>

#include "graph/flops.h"
#include "layers/layers.h"
#include "lockstep/error.h"
#include "lockstep/ops/matmul.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

class LinearNode final : public Node, public CountsFlops {
 public:
  LinearNode(std::string name, ActivationId in, ActivationId out, ParameterId weight, ParameterId bias,
             ActivationFunction activation)
      : Node(std::move(name), {in}, {out}), in_(in), out_(out), weight_(weight), bias_(bias), activation_(activation) {}

  void plan(Graph& graph, Backend& backend) override {
    const Activation& x = graph.activation(in_);
    const Shape weight = graph.parameters()[weight_.id()].shape;
    MatmulDescription description{.rows = x.shape.n_elements() / weight[1],
                                  .in_features = weight[1],
                                  .out_features = weight[0],
                                  .dtype = x.dtype,
                                  .tf32 = graph.options().tf32,
                                  .bias = bias_.exists(),
                                  .activation = activation_,
                                  .input_gradient = x.needs_gradient,
                                  .inference = !graph.training(),
                                  .fp32_output = graph.activation(out_).dtype != x.dtype,
                                  .weight_layout = nullptr};
    graph.choose_layout(weight_.id(), [&] {
      MatmulDescription alike = description;
      // Fewer than the batch where only some rows are selected.
      alike.rows = std::max<std::int64_t>(1, description.rows * graph.options().layout_batch / graph.options().batch);
      return backend.make(alike)->weight_layout();
    });
    description.weight_layout = graph.parameters()[weight_.id()].layout;
    op_ = backend.make(description);
    for (ParameterUse* use : parameters()) use->read_as(description.dtype);
    flops_ = {.forward = 2.0 * static_cast<double>(x.shape.n_elements()) * static_cast<double>(weight[0]),
              .passes = product_passes(graph.training(), x.needs_gradient, graph.parameters()[weight_.id()].trainable)};
    x_ = graph.data_of(in_, *this);
    y_ = graph.make_data(out_, *this);
  }

  void plan_backward(Graph& graph) override {
    dx_ = graph.gradient_target(in_, *this);
    dy_ = graph.gradient_of(out_, *this);
    reads(Phase::backward, x_);
    if (activation_ == ActivationFunction::relu) reads(Phase::backward, y_);
  }

  void bind(const Graph&, const Bindings&) override {
    require(!bias_.exists() || bias_.is_first_writer() == weight_.is_first_writer(), ErrorCode::internal,
            "{}: the op writes the gradients of weight and bias in one mode, so a layer with a bias of its own cannot "
            "add to the gradient of a shared weight",
            name());
  }

  void forward(const Run& run) override {
    op_->forward({.x = run.tensor(x_), .weight = weight_.weights(run), .bias = bias_.weights(run), .y = run.tensor(y_)},
                 memory(run), run.stream);
  }

  void backward(const Run& run) override {
    op_->backward({.dy = run.tensor(dy_),
                   .x = run.tensor(x_),
                   .y = run.tensor(y_),
                   .weight = weight_.weights(run),
                   .dx = run.tensor(dx_.tensor),
                   .dx_mode = dx_.mode,
                   .dweight = weight_.gradient(run),
                   .dbias = bias_.gradient(run),
                   .parameter_mode = weight_.mode(run)},
                  memory(run), run.stream);
  }

  const Op* op() const override { return op_.get(); }
  std::vector<ParameterUse*> parameters() override { return {&bias_, &weight_}; }
  Flops flops() const override { return flops_; }

 private:
  ActivationId in_, out_;
  ParameterUse weight_, bias_;
  ActivationFunction activation_;
  std::unique_ptr<Matmul> op_;
  Flops flops_;
  TensorId x_ = kNoTensor, y_ = kNoTensor, dy_ = kNoTensor;
  Graph::GradientTarget dx_;
};

/// The names of the layers that files hold, as those of their tensors.
std::vector<NamedRows> with_suffix(std::vector<NamedRows> parts, const char* suffix) {
  for (NamedRows& part : parts) part.name += suffix;
  return parts;
}

}  // namespace

void require_frozen_together(const graph::ParameterTable& table, graph::ParameterId weight, graph::ParameterId bias) {
  if (bias == kNoParameter || table[weight].trainable == table[bias].trainable) return;
  const bool has_weight = table[bias].trainable;
  fail(ErrorCode::config_range,
       "{} selects {} and not {}, but the gradients of a layer are computed together: freeze both or neither",
       table.freeze_source(), table[has_weight ? weight : bias].name, table[has_weight ? bias : weight].name);
}

ActivationId linear(Graph& graph, ActivationId x, const std::string& name, const LinearOptions& options) {
  const Shape in = graph.activation(x).shape;
  const Initializer initial = options.initial.value_or(
      Initializer{.kind = Initializer::Kind::uniform, .value = 1.0 / std::sqrt(static_cast<double>(in.last()))});
  ParameterTable& table = graph.parameters();
  const ParameterId weight = table.parameter({.name = options.weight.empty() ? name + ".weight" : options.weight,
                                              .shape = {options.out_features, in.last()},
                                              .kind = ParameterKind::weight,
                                              .initial = initial,
                                              .trainable = options.trainable,
                                              .parts = with_suffix(options.parts, ".weight")});
  const ParameterId bias = !options.bias ? kNoParameter
                                         : table.parameter({.name = name + ".bias",
                                                            .shape = {options.out_features},
                                                            .kind = ParameterKind::bias,
                                                            .initial = options.initial_bias.value_or(initial),
                                                            .trainable = options.trainable,
                                                            .parts = with_suffix(options.parts, ".bias")});
  require_frozen_together(table, weight, bias);
  const ActivationId y = graph.add_activation({.name = name,
                                               .shape = in.with_dimension(-1, options.out_features),
                                               .dtype = options.fp32_output ? DType::fp32 : graph.activation(x).dtype});
  graph.add_node<LinearNode>(name, x, y, weight, bias, options.activation);
  return y;
}

}  // namespace lockstep::layers
