#include <cmath>

#include "graph/graph.h"
#include "layers/layers.h"
#include "layers/pending_normalization.h"
#include "lockstep/ops/conv2d.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

class ConvolutionNode final : public Node, public StatisticsProducer, public CountsFlops {
 public:
  ConvolutionNode(std::string name, ActivationId in, ActivationId out, ParameterId weight,
                  const ConvolutionOptions& options)
      : Node(std::move(name), {in}, {out}), in_(in), out_(out), weight_(weight), options_(options) {}

  void give_statistics(std::shared_ptr<NormTensors> norm) override { norm_ = std::move(norm); }

  void plan(Graph& graph, Backend& backend) override {
    in_.plan(graph, *this);
    const Activation& x = graph.activation(in_.id());
    const Activation& y = graph.activation(out_);
    Conv2dDescription description{.x = x.shape,
                                  .out_channels = options_.out_channels,
                                  .kernel_size = options_.kernel_size,
                                  .stride = options_.stride,
                                  .padding = options_.padding,
                                  .dtype = y.dtype,
                                  .tf32 = graph.options().tf32,
                                  .x_layout = x.layout,
                                  .y_layout = y.layout,
                                  .normalization = in_.normalization(),
                                  .statistics = norm_ != nullptr,
                                  .fp32_sums = !(norm_ && norm_->is_synchronized) && in_.allows_fp32_sums(),
                                  .input_gradient = x.needs_gradient,
                                  .inference = !graph.training(),
                                  .weight_layout = nullptr};
    graph.choose_layout(weight_.id(), [&] {
      Conv2dDescription alike = description;
      alike.x = {graph.options().layout_batch, x.shape[1], x.shape[2], x.shape[3]};
      return backend.make(alike)->weight_layout();
    });
    description.weight_layout = graph.parameters()[weight_.id()].layout;
    op_ = backend.make(description);
    in_.give_sums_as(op_->sums_dtype());
    weight_.read_as(description.dtype);
    if (op_->gives_low_precision_dweight()) weight_.can_give_low_precision_gradient();
    flops_ = {.forward = 2.0 * static_cast<double>(y.shape.n_elements()) *
                         static_cast<double>(x.shape[3] * options_.kernel_size * options_.kernel_size),
              .passes = product_passes(graph.training(), x.needs_gradient, graph.parameters()[weight_.id()].trainable),
              .are_upper_bound = options_.kernel_size > 1};
    y_ = graph.make_data(out_, *this);
    if (!norm_) return;
    norm_->statistics_dtype = op_->statistics_dtype();
    writes(Phase::forward, norm_->statistics);
  }

  void plan_backward(Graph& graph) override {
    in_.plan_backward(graph, *this);
    dy_ = graph.gradient_of(out_, *this);
  }

  void forward(const Run& run) override {
    op_->forward(
        {.x = in_.x(run),
         .weight = weight_.weights(run),
         .y = run.tensor(y_),
         .statistics = norm_ ? TypedPointer(run.tensor(norm_->statistics), norm_->statistics_dtype) : TypedPointer(),
         .normalization = in_.forward_args(run)},
        memory(run), run.stream);
  }

  void backward(const Run& run) override {
    op_->backward(backward_args(run, is_forked() ? BackwardPart::rest : BackwardPart::all), memory(run), run.stream);
  }

  WeightGradient weight_gradient_part() const override {
    const auto workspaces = op_->workspace_of_parts();
    if (!workspaces) return {};
    std::vector<TensorId> reads = in_.weight_gradient_reads();
    reads.push_back(dy_);
    return {.parameter = &weight_,
            .reads = std::move(reads),
            .workspace_bytes = workspaces->weight_gradient,
            .rest_workspace_bytes = workspaces->rest};
  }

  void weight_gradient(const Run& run) override {
    op_->backward(backward_args(run, BackwardPart::weight_gradient), memory(run), run.stream);
  }

  std::vector<const Op*> ops() const override { return {op_.get()}; }
  std::vector<ParameterUse*> parameters() override { return {&weight_}; }
  Flops flops() const override { return flops_; }

 private:
  Conv2d::Backward backward_args(const Run& run, BackwardPart part) const {
    return {.dy = run.tensor(dy_),
            .x = in_.x(run),
            .weight = weight_.weights(run),
            .dweight = weight_.typed_gradient(run),
            .dweight_mode = weight_.mode(run),
            .dx = in_.dx(run),
            .dx_mode = in_.dx_mode(),
            .normalization = in_.forward_args(run),
            .gradient = in_.backward_args(run),
            .part = part};
  }

  NormalizedInput in_;
  ActivationId out_;
  ParameterUse weight_;
  ConvolutionOptions options_;
  std::unique_ptr<Conv2d> op_;
  Flops flops_;
  std::shared_ptr<NormTensors> norm_;  // of the norm that follows; null if there is none
  TensorId y_ = kNoTensor, dy_ = kNoTensor;
};

}  // namespace

ActivationId convolution(Graph& graph, ActivationId x, const std::string& name, const ConvolutionOptions& options) {
  const Shape in = graph.activation(x).shape;
  const Shape out = Conv2dDescription{.x = in,
                                      .out_channels = options.out_channels,
                                      .kernel_size = options.kernel_size,
                                      .stride = options.stride,
                                      .padding = options.padding}
                        .y();
  const Shape weight{options.out_channels, in[3], options.kernel_size, options.kernel_size};
  const double fan_out = static_cast<double>(options.out_channels) * options.kernel_size * options.kernel_size;
  const ParameterId id =
      graph.parameters().parameter({.name = name + ".weight",
                                    .shape = weight,
                                    .kind = ParameterKind::weight,
                                    .initial = {.kind = Initializer::Kind::normal, .value = std::sqrt(2.0 / fan_out)},
                                    .trainable = options.trainable});
  const ActivationId y = graph.add_activation({.name = name, .shape = out, .dtype = graph.options().dtype});
  graph.add_node<ConvolutionNode>(name, x, y, id, options);
  return y;
}

}  // namespace lockstep::layers
