#include <cmath>
#include <numeric>

#include "graph/graph.h"
#include "layers/layers.h"
#include "lockstep/error.h"
#include "lockstep/ops/cross_entropy.h"
#include "lockstep/ops/linear_cross_entropy.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

class CrossEntropyNode final : public Node {
 public:
  /// `class_weights` is kNoConstant if there are none.
  CrossEntropyNode(ActivationId logits, TensorId labels, const CrossEntropyOptions& options, std::size_t offset,
                   ConstantId class_weights)
      : Node("loss", {logits}, {}),
        logits_(logits),
        labels_(labels),
        partner_labels_(options.mixed.partner_labels),
        label_weight_(options.mixed.weight),
        label_smoothing_(options.label_smoothing),
        offset_(offset),
        class_weights_(class_weights) {}

  void plan(Graph& graph, Backend& backend) override {
    const Shape shape = graph.activation(logits_).shape;
    op_ = backend.make(SoftmaxCrossEntropyDescription{.rows = shape.n_elements() / shape.last(),
                                                      .classes = shape.last(),
                                                      .label_smoothing = graph.training() ? label_smoothing_ : 0.0f,
                                                      .class_weight_sum = sum_of_class_weights(graph),
                                                      .dtype = DType::fp32,
                                                      .inference = !graph.training()});
    x_ = graph.data_of(logits_, *this);
    for (const TensorId tensor : {partner_labels_, label_weight_}) reads(Phase::forward, tensor);
  }

  void plan_backward(Graph& graph) override {
    dx_ = graph.gradient_target(logits_, *this).tensor;
    for (const TensorId tensor : {x_, partner_labels_, label_weight_}) reads(Phase::backward, tensor);
  }

  void forward(const Run& run) override {
    op_->forward({.logits = run.tensor(x_),
                  .labels = run.tensor<const std::int32_t>(labels_),
                  .mixed = mixed(run),
                  .class_weights = run.constant(class_weights_),
                  .sums = reinterpret_cast<LossSums*>(run.at.exchange + offset_),
                  .sums_mode = run.gradients.mode},
                 memory(run), run.stream);
  }

  void backward(const Run& run) override {
    op_->backward({.logits = run.tensor(x_),
                   .labels = run.tensor<const std::int32_t>(labels_),
                   .mixed = mixed(run),
                   .class_weights = run.constant(class_weights_),
                   .scalars = run.at.scalars,
                   .loss_scale = run.at.loss_scale,
                   .dlogits = run.tensor(dx_)},
                  memory(run), run.stream);
  }

  std::vector<const Op*> ops() const override { return {op_.get()}; }
  /// Running it again would add to the sums of the step twice.
  Recomputation recomputation() const override { return Recomputation::forbidden; }

 private:
  double sum_of_class_weights(const Graph& graph) const {
    if (class_weights_ == kNoConstant) return 0;
    const std::vector<float>& values = graph.parameters().constant(class_weights_).values;
    return std::accumulate(values.begin(), values.end(), 0.0);
  }

  MixedLabels mixed(const Run& run) const {
    return {.labels = run.tensor<const std::int32_t>(partner_labels_),
            .weight = run.tensor<const float>(label_weight_)};
  }

  ActivationId logits_;
  TensorId labels_, partner_labels_, label_weight_;
  float label_smoothing_;
  std::size_t offset_;
  ConstantId class_weights_;
  std::unique_ptr<SoftmaxCrossEntropy> op_;
  TensorId x_ = kNoTensor, dx_ = kNoTensor;
};

}  // namespace

void cross_entropy(Graph& graph, ActivationId logits, graph::TensorId labels, std::size_t sums_offset,
                   const CrossEntropyOptions& options) {
  const std::vector<float>& class_weights = options.class_weights;
  const bool is_weighted = graph.training() && !class_weights.empty();
  const ConstantId weights =
      is_weighted ? graph.parameters().add_constant("loss class weights", class_weights) : kNoConstant;
  graph.add_node<CrossEntropyNode>(logits, labels, options, sums_offset, weights);
}

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

/// Forward computes the gradients too, since the loss needs nothing that comes later. Backward, in which this node is
/// the first, only marks them as complete. The node is therefore the first writer of its weight's gradient, even if an
/// embedding shares the weight.
class LinearCrossEntropyNode final : public Node, public CountsFlops {
 public:
  LinearCrossEntropyNode(std::string name, ActivationId in, ParameterId weight, TensorId targets, std::size_t offset,
                         TensorId losses)
      : Node(std::move(name), {in}, {}),
        in_(in),
        weight_(weight),
        targets_(targets),
        offset_(offset),
        losses_(losses) {}

  void plan(Graph& graph, Backend& backend) override {
    const graph::Activation& x = graph.activation(in_);
    const Parameter& weight = graph.parameters()[weight_.id()];
    LinearCrossEntropyDescription description{.rows = x.shape.n_elements() / x.shape.last(),
                                              .width = x.shape.last(),
                                              .vocabulary = weight.shape[0],
                                              .dtype = x.dtype,
                                              .gradient_dtype = graph.options().gradient_dtype,
                                              .tf32 = graph.options().tf32,
                                              .input_gradient = x.needs_gradient,
                                              .weight_gradient = weight.trainable,
                                              .inference = !graph.training()};
    graph.choose_layout(weight_.id(), [&] { return backend.make(description)->weight_layout(); });
    description.weight_layout = graph.parameters()[weight_.id()].layout;
    op_ = backend.make(description);
    trains_ = graph.training();
    flops_ = {.forward = 2.0 * static_cast<double>(x.shape.n_elements()) * static_cast<double>(weight.shape[0]),
              .passes = product_passes(trains_, x.needs_gradient, weight.trainable)};
    weight_.read_as(x.dtype);
    x_ = graph.data_of(in_, *this);
  }

  void plan_backward(Graph& graph) override {
    graph::Activation& x = graph.activation(in_);
    if (!x.needs_gradient) return;
    require(x.gradient == kNoTensor, ErrorCode::internal,
            "{}: no layer that is added later may read {}, whose gradient is computed in the forward pass", name(),
            x.name);
    x.gradient = dx_ = graph.memory().add("d " + x.name, x.size_bytes());
    writes(Phase::forward, dx_);
    reads(Phase::backward, dx_);
  }

  void bind(const Graph& graph, const Bindings&) override {
    require(!graph.training() || weight_.is_first_writer(), ErrorCode::internal,
            "{}: no layer that shares its weight may be added later, because the gradient is written in the forward "
            "pass",
            name());
  }

  void forward(const Run& run) override {
    op_->forward({.x = run.tensor(x_),
                  .weight = weight_.weights(run),
                  .targets = run.tensor<const std::int32_t>(targets_),
                  .sums = reinterpret_cast<LossSums*>(run.at.exchange + offset_),
                  .sums_mode = run.gradients.mode,
                  .losses = run.tensor<float>(losses_),
                  .scalars = run.at.scalars,
                  .loss_scale = run.at.loss_scale,
                  .dx = run.tensor(dx_),
                  .dweight = trains_ ? weight_.typed_gradient(run).data : nullptr,
                  .dweight_mode = trains_ ? weight_.mode(run) : GradientMode::skip},
                 memory(run), run.stream);
  }

  std::vector<const Op*> ops() const override { return {op_.get()}; }
  Flops flops() const override { return flops_; }
  std::vector<ParameterUse*> parameters() override { return {&weight_}; }
  /// Running it again would add to the sums of the step twice.
  Recomputation recomputation() const override { return Recomputation::forbidden; }

 private:
  ActivationId in_;
  ParameterUse weight_;
  TensorId targets_;
  std::size_t offset_;
  TensorId losses_;
  bool trains_ = false;
  Flops flops_;
  std::unique_ptr<LinearCrossEntropy> op_;
  TensorId x_ = kNoTensor, dx_ = kNoTensor;
};

}  // namespace

void linear_cross_entropy(Graph& graph, ActivationId x, const std::string& name, graph::TensorId targets,
                          std::size_t sums_offset, const LinearCrossEntropyOptions& options) {
  const std::int64_t width = graph.activation(x).shape.last();
  const Initializer initial = options.initial.value_or(
      Initializer{.kind = Initializer::Kind::uniform, .value = 1.0 / std::sqrt(static_cast<double>(width))});
  const ParameterId weight =
      graph.parameters().parameter({.name = options.weight.empty() ? name + ".weight" : options.weight,
                                    .shape = {options.vocabulary, width},
                                    .kind = ParameterKind::weight,
                                    .initial = initial,
                                    .trainable = options.trainable});
  graph.add_node<LinearCrossEntropyNode>(name, x, weight, targets, sums_offset, options.losses);
}

}  // namespace lockstep::layers
