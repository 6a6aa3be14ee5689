#include "lockstep/ops/cross_entropy.h"

#include <numeric>

#include "layers/layers.h"

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

}  // namespace lockstep::layers
