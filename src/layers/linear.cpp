#include <algorithm>
#include <cmath>

#include "graph/graph.h"
#include "graph/nf4.h"
#include "layers/layers.h"
#include "lockstep/error.h"
#include "lockstep/ops/lora.h"
#include "lockstep/ops/matmul.h"
#include "lockstep/ops/nf4_matmul.h"
#include "lockstep/philox.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

/// The adapters of a layer, which run after its product in both phases.
struct Adapter {
  ParameterUse a, b;
  LoraDescription description;  // the parts and the dropout; the sizes follow when the layer is planned
  TensorId sample_ids = kNoTensor;
  std::unique_ptr<Lora> op;

  Lora::Samples samples(const Run& run) const {
    return {.ids = run.tensor<const std::uint32_t>(sample_ids), .scalars = run.at.scalars};
  }
};

/// A layer: its product, which has two forms, and then its adapters.
class LinearNode : public Node, public CountsFlops {
 public:
  LinearNode(std::string name, ActivationId in, ActivationId out, ParameterId weight, ParameterId bias,
             std::optional<Adapter> adapter)
      : Node(std::move(name), {in}, {out}),
        in_(in),
        out_(out),
        weight_(weight),
        bias_(bias),
        adapter_(std::move(adapter)) {}

  void plan(Graph& graph, Backend& backend) override {
    const Activation& x = graph.activation(in_);
    const Shape weight = graph.parameters()[weight_.id()].shape;
    const MatmulDescription product{.rows = x.shape.n_elements() / weight[1],
                                    .in_features = weight[1],
                                    .out_features = weight[0],
                                    .dtype = x.dtype,
                                    .gradient_dtype = graph.options().gradient_dtype,
                                    .tf32 = graph.options().tf32,
                                    .bias = bias_.exists(),
                                    .input_gradient = x.needs_gradient,
                                    .inference = !graph.training(),
                                    .fp32_output = graph.activation(out_).dtype != x.dtype,
                                    .weight_layout = nullptr};
    plan_product(graph, backend, product);
    for (ParameterUse* use : parameters()) use->read_as(product.dtype);
    flops_ = {.forward = 2.0 * static_cast<double>(x.shape.n_elements()) * static_cast<double>(weight[0]),
              .passes = product_passes(graph.training(), x.needs_gradient, graph.parameters()[weight_.id()].trainable)};
    x_ = graph.data_of(in_, *this);
    y_ = graph.make_data(out_, *this);
    if (adapter_) plan_adapter(graph, backend, product);
  }

  void plan_backward(Graph& graph) override {
    dx_ = graph.gradient_target(in_, *this);
    dy_ = graph.gradient_of(out_, *this);
    if (adapter_ || graph.parameters()[weight_.id()].trainable) reads(Phase::backward, x_);
  }

  void bind(const Graph&, const Bindings&) override {
    require(!bias_.exists() || bias_.is_first_writer() == weight_.is_first_writer(), ErrorCode::internal,
            "{}: the op writes the gradients of weight and bias in one mode, so a layer with a bias of its own cannot "
            "add to the gradient of a shared weight",
            name());
  }

  void forward(const Run& run) override {
    multiply(run);
    if (adapter_)
      adapter_->op->forward({.x = run.tensor(x_),
                             .a = adapter_->a.weights(run),
                             .b = adapter_->b.weights(run),
                             .y = run.tensor(y_),
                             .samples = adapter_->samples(run)},
                            memory(run), run.stream);
  }

  void backward(const Run& run) override {
    multiply_backward(run);
    if (adapter_)
      adapter_->op->backward({.dy = run.tensor(dy_),
                              .x = run.tensor(x_),
                              .a = adapter_->a.weights(run),
                              .b = adapter_->b.weights(run),
                              .dx = run.tensor(dx_.tensor),
                              .da = adapter_->a.gradient(run),
                              .db = adapter_->b.gradient(run),
                              .parameter_mode = adapter_->a.mode(run),
                              .samples = adapter_->samples(run)},
                             memory(run), run.stream);
  }

  std::vector<const Op*> ops() const override {
    std::vector<const Op*> ops{product()};
    if (adapter_) ops.push_back(adapter_->op.get());
    return ops;
  }
  std::vector<ParameterUse*> parameters() override {
    if (!adapter_) return {&bias_, &weight_};
    return {&bias_, &weight_, &adapter_->b, &adapter_->a};
  }
  Flops flops() const override { return flops_; }

 protected:
  /// Makes the op of the product. `description`: without activation and layout.
  virtual void plan_product(Graph& graph, Backend& backend, MatmulDescription description) = 0;
  virtual const Op* product() const = 0;
  virtual void multiply(const Run& run) = 0;
  virtual void multiply_backward(const Run& run) = 0;

  ActivationId in_, out_;
  ParameterUse weight_, bias_;
  TensorId x_ = kNoTensor, y_ = kNoTensor, dy_ = kNoTensor;
  Graph::GradientTarget dx_;

 private:
  void plan_adapter(const Graph& graph, Backend& backend, const MatmulDescription& product) {
    const Activation& x = graph.activation(in_);
    LoraDescription& d = adapter_->description;
    d.rows = product.rows;
    d.in_features = product.in_features;
    d.out_features = product.out_features;
    d.dtype = product.dtype;
    d.tf32 = product.tf32;
    d.inference = product.inference;
    d.tokens = d.drops() ? x.shape[x.shape.rank() - 2] : 1;
    adapter_->op = backend.make(d);
    if (d.drops()) reads(Phase::forward, adapter_->sample_ids);
    if (d.drops()) reads(Phase::backward, adapter_->sample_ids);
    // Adds the FLOPs of the adapter. Its passes are expressed as forward passes of the whole layer.
    const double rank = static_cast<double>(d.rank), rows = 2.0 * static_cast<double>(d.rows);
    const double own =
        rows * rank *
        (static_cast<double>(d.in_features) * static_cast<double>(d.parts.size()) + static_cast<double>(d.columns()));
    const double passes =
        product_passes(graph.training(), x.needs_gradient, graph.parameters()[adapter_->a.id()].trainable);
    flops_.passes = (flops_.total() + own * passes) / (flops_.forward + own);
    flops_.forward += own;
  }

  std::optional<Adapter> adapter_;
  Flops flops_;
};

class PlainLinearNode final : public LinearNode {
 public:
  PlainLinearNode(std::string name, ActivationId in, ActivationId out, ParameterId weight, ParameterId bias,
                  std::optional<Adapter> adapter, ActivationFunction activation, bool allows_fp8)
      : LinearNode(std::move(name), in, out, weight, bias, std::move(adapter)),
        activation_(activation),
        allows_fp8_(allows_fp8) {}

  void plan_backward(Graph& graph) override {
    LinearNode::plan_backward(graph);
    if (activation_ == ActivationFunction::relu) reads(Phase::backward, y_);
  }

 private:
  void plan_product(Graph& graph, Backend& backend, MatmulDescription description) override {
    description.activation = activation_;
    description.fp8 = allows_fp8_ && graph.options().fp8;
    graph.choose_layout(weight_.id(), [&] {
      MatmulDescription alike = description;
      // Fewer rows than the batch if only some rows are selected.
      alike.rows = std::max<std::int64_t>(1, description.rows * graph.options().layout_batch / graph.options().batch);
      return backend.make(alike)->weight_layout();
    });
    description.weight_layout = graph.parameters()[weight_.id()].layout;
    op_ = backend.make(description);
  }
  const Op* product() const override { return op_.get(); }
  void multiply(const Run& run) override {
    op_->forward({.x = run.tensor(x_), .weight = weight_.weights(run), .bias = bias_.weights(run), .y = run.tensor(y_)},
                 memory(run), run.stream);
  }
  void multiply_backward(const Run& run) override {
    op_->backward({.dy = run.tensor(dy_),
                   .x = run.tensor(x_),
                   .y = run.tensor(y_),
                   .weight = weight_.weights(run),
                   .dx = run.tensor(dx_.tensor),
                   .dx_mode = dx_.mode,
                   .dweight = weight_.typed_gradient(run).data,
                   .dbias = bias_.typed_gradient(run).data,
                   .parameter_mode = weight_.mode(run)},
                  memory(run), run.stream);
  }

  ActivationFunction activation_;
  bool allows_fp8_;
  std::unique_ptr<Matmul> op_;
};

/// Its weight is stored in NF4, and frozen.
class Nf4LinearNode final : public LinearNode {
 public:
  Nf4LinearNode(std::string name, ActivationId in, ActivationId out, ParameterId weight, ParameterId bias,
                std::optional<Adapter> adapter, ConstantId scale_values)
      : LinearNode(std::move(name), in, out, weight, bias, std::move(adapter)), scale_values_(scale_values) {}

 private:
  void plan_product(Graph& graph, Backend& backend, MatmulDescription d) override {
    Nf4MatmulDescription description{.rows = d.rows,
                                     .in_features = d.in_features,
                                     .dtype = d.dtype,
                                     .tf32 = d.tf32,
                                     .bias = d.bias,
                                     .input_gradient = d.input_gradient,
                                     .inference = d.inference};
    for (const ParameterPart& part : graph.parameters()[weight_.id()].parts)
      description.matrices.push_back(part.shape[0]);
    op_ = backend.make(description);
  }
  const Op* product() const override { return op_.get(); }
  void multiply(const Run& run) override {
    op_->forward({.x = run.tensor(x_),
                  .weight = weight_.nf4_weights(run),
                  .scale_values = run.constant(scale_values_),
                  .bias = bias_.weights(run),
                  .y = run.tensor(y_)},
                 memory(run), run.stream);
  }
  void multiply_backward(const Run& run) override {
    op_->backward({.dy = run.tensor(dy_),
                   .weight = weight_.nf4_weights(run),
                   .scale_values = run.constant(scale_values_),
                   .dx = run.tensor(dx_.tensor),
                   .dx_mode = dx_.mode},
                  memory(run), run.stream);
  }

  ConstantId scale_values_;
  std::unique_ptr<Nf4Matmul> op_;
};

/// Turns the names of the layers in files into the names of their tensors.
std::vector<NamedRows> with_suffix(std::vector<NamedRows> parts, const char* suffix) {
  for (NamedRows& part : parts) part.name += suffix;
  return parts;
}

/// The parts of the layer that have adapters, and their parameters: A (parts * rank, in), B (columns, rank).
std::optional<Adapter> adapter_of(Graph& graph, const std::string& name, std::int64_t in,
                                  const LinearOptions& options) {
  const AdapterOptions& o = options.adapter;
  if (o.rank == 0) return {};
  std::vector<NamedRows> layers = options.parts;
  if (layers.empty()) layers.push_back({name, options.out_features});
  LoraDescription d{.rank = o.rank, .scale = o.scale, .dropout = o.dropout, .seed = o.seed};
  std::vector<NamedRows> of_a, of_b;
  std::int64_t begin = 0;
  for (const NamedRows& layer : layers) {
    if (std::ranges::find(o.targets, layer.name) != o.targets.end()) {
      d.parts.push_back({.begin = begin, .columns = layer.n_rows, .stream = name_hash(layer.name)});
      of_a.push_back({layer.name, o.rank});
      of_b.push_back(layer);
    }
    begin += layer.n_rows;
  }
  if (d.parts.empty()) return {};
  require(options.activation == ActivationFunction::none, ErrorCode::internal, "{}: an adapter before an activation",
          name);
  ParameterTable& table = graph.parameters();
  const auto add = [&](const char* suffix, Shape shape, Initializer initial, std::vector<NamedRows> parts) {
    return table.parameter({.name = name + suffix,
                            .shape = shape,
                            .kind = ParameterKind::weight,
                            .initial = initial,
                            .parts = with_suffix(std::move(parts), suffix)});
  };
  // A is initialised like torch.nn.Linear, which is PEFT's kaiming_uniform_(a=sqrt(5)). B is initialised with zeros.
  const ParameterId a =
      add(".lora_A.weight", {d.ranks(), in},
          {.kind = Initializer::Kind::uniform, .value = 1.0 / std::sqrt(static_cast<double>(in))}, std::move(of_a));
  const ParameterId b = add(".lora_B.weight", {d.columns(), o.rank}, {}, std::move(of_b));
  require_frozen_together(table, a, b);
  return Adapter{.a = ParameterUse(a),
                 .b = ParameterUse(b),
                 .description = std::move(d),
                 .sample_ids = o.sample_ids,
                 .op = nullptr};
}

}  // namespace

void require_frozen_together(const graph::ParameterTable& table, graph::ParameterId weight, graph::ParameterId bias) {
  if (bias == kNoParameter || table[weight].trainable == table[bias].trainable) return;
  const bool has_weight = table[bias].trainable;
  fail(ErrorCode::config_invalid,
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
                                              .is_in_nf4 = options.is_in_nf4,
                                              .parts = with_suffix(options.parts, ".weight")});
  const ParameterId bias = !options.bias ? kNoParameter
                                         : table.parameter({.name = name + ".bias",
                                                            .shape = {options.out_features},
                                                            .kind = ParameterKind::bias,
                                                            .initial = options.initial_bias.value_or(initial),
                                                            .trainable = options.trainable,
                                                            .parts = with_suffix(options.parts, ".bias")});
  if (!options.is_in_nf4) require_frozen_together(table, weight, bias);
  const ActivationId y = graph.add_activation({.name = name,
                                               .shape = in.with_dimension(-1, options.out_features),
                                               .dtype = options.fp32_output ? DType::fp32 : graph.activation(x).dtype});
  require(!options.is_in_nf4 || options.activation == ActivationFunction::none, ErrorCode::internal,
          "{}: a weight in NF4 before an activation", name);
  if (options.is_in_nf4) {
    const auto& values = graph::nf4_scale_values();
    const ConstantId scale_values = table.add_constant("NF4 scales", {values.begin(), values.end()});
    graph.add_node<Nf4LinearNode>(name, x, y, weight, bias, adapter_of(graph, name, in.last(), options), scale_values);
  } else {
    graph.add_node<PlainLinearNode>(name, x, y, weight, bias, adapter_of(graph, name, in.last(), options),
                                    options.activation, options.allows_fp8);
  }
  return y;
}

}  // namespace lockstep::layers
