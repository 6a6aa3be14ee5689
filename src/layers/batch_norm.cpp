// Batch norm returns a pending activation, which ReLU and an addition extend. The norm's own node turns the sums of the
// preceding convolution into scale and bias, and in backward turns dz and its sums into the gradient of the raw
// activation. A norm whose parameters are frozen is frozen as a whole: it normalises with its running statistics, does
// not change them, and is an affine function in backward.
#include "lockstep/ops/batch_norm.h"
#include "layers/layers.h"
#include "layers/pending_normalization.h"
#include "lockstep/error.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

class BatchNormNode final : public Node {
 public:
  BatchNormNode(std::string name, ActivationId raw, ActivationId out, std::shared_ptr<NormTensors> norm,
                ParameterId gamma, ParameterId beta, int statistic, const BatchNormOptions& options)
      : Node(std::move(name), {raw}, {out}),
        raw_(raw),
        norm_(std::move(norm)),
        gamma_(gamma),
        beta_(beta),
        statistic_(statistic),
        options_(options) {
    norm_->gamma = &gamma_;
    norm_->beta = &beta_;
    norm_->node = this;
  }

  void plan(Graph& graph, Backend& backend) override {
    const Activation& x = graph.activation(raw_);
    channels_ = x.shape[3];
    const auto c = static_cast<std::size_t>(channels_);
    is_frozen_ = !graph.parameters()[gamma_.id()].trainable;
    inference_ = !graph.training() || is_frozen_;
    synchronize_ = options_.synchronize && !inference_;
    const std::int64_t samples = synchronize_ ? options_.global_batch : x.shape[0];
    description_ = {.x = x.shape,
                    .dtype = x.dtype,
                    .layout = x.layout,
                    .n_rows = static_cast<double>(samples * x.shape[1] * x.shape[2]),
                    .epsilon = options_.epsilon};
    op_ = backend.make(description_);
    MemoryPlan& memory = graph.memory();
    norm_->scale_bias = memory.add(name() + " scale, bias", 2 * c * sizeof(float));
    writes(Phase::forward, norm_->scale_bias);
    if (size_bytes(x.dtype) < sizeof(float)) {
      norm_->low_precision_scale_bias =
          memory.add(name() + " scale, bias in " + std::string(lockstep::name(x.dtype)), 2 * c * size_bytes(x.dtype));
      writes(Phase::forward, norm_->low_precision_scale_bias);
    }
    if (!graph.training()) return;
    norm_->mean_inverse_stddev = memory.add(name() + " mean, 1/stddev", 2 * c * sizeof(float));
    writes(Phase::forward, norm_->mean_inverse_stddev);
    if (inference_) return;
    reads(Phase::forward, norm_->statistics);
    weight_ = 1.0f / static_cast<float>(options_.n_micro_batches);
    if (synchronize_) {
      for (const auto& [sum, label] :
           {std::pair{&forward_sum_, " statistics"}, std::pair{&backward_sum_, " gradient sums"}})
        *sum = {.label = name() + label, .n = 2 * c, .offset = graph.add_exchange(2 * c * sizeof(double))};
      forward_sum_.local = norm_->statistics;
    }
    join_earlier();
  }

  void plan_backward(Graph& graph) override {
    if (is_joined_) return;
    make_gradient(graph);
    if (earlier_) earlier_->make_gradient(graph);
    for (const BatchNormNode* norm :
         {static_cast<const BatchNormNode*>(this), static_cast<const BatchNormNode*>(earlier_)}) {
      if (!norm) continue;
      for (TensorId t : {norm->dz_, norm->x_, norm->norm_->sums, norm->norm_->mean_inverse_stddev})
        reads(Phase::backward, t);
      writes(Phase::backward, norm->dx_);
    }
  }

  void make_gradient(Graph& graph) {
    require(norm_->applied_in != kNoActivation && norm_->sums != kNoTensor, ErrorCode::internal,
            "{}: its result is never used", name());
    const Activation& z = graph.activation(norm_->applied_in);
    Activation& x = graph.activation(raw_);
    dz_ = z.gradient;
    // The gradient of x takes the place of dz if no other node needs dz. With a residual, dz is also the gradient of
    // the residual or of another norm.
    const bool is_alone = pending_normalization(graph, norm_->applied_in)->residual == kNoActivation;
    x.gradient = is_alone ? dz_ : graph.memory().add("d " + x.name, x.size_bytes());
    dx_ = x.gradient;
    x_ = x.data;
    backward_sum_.local = norm_->sums;
  }

  const SumOverRanks* sum_over_ranks(Phase phase) const override {
    if (!synchronize_) return nullptr;
    return phase == Phase::backward ? &backward_sum_ : &forward_sum_;
  }

  void forward(const Run& run) override {
    if (is_joined_) return;
    if (inference_) {
      const float* running = run.running_statistic(statistic_);
      op_->finalize_inference({.running_mean = running,
                               .running_variance = running + channels_,
                               .gamma = gamma_.master(run),
                               .beta = beta_.master(run),
                               .scale_bias = run.tensor<float>(norm_->scale_bias),
                               .mean_inverse_stddev = run.tensor<float>(norm_->mean_inverse_stddev),
                               .low_precision_scale_bias = run.tensor(norm_->low_precision_scale_bias)},
                              memory(run), run.stream);
      return;
    }
    if (earlier_)
      op_->finalize_both({.first = earlier_->finalize_args(run), .second = finalize_args(run)}, memory(run),
                         run.stream);
    else
      op_->finalize(finalize_args(run), memory(run), run.stream);
  }

  void backward(const Run& run) override {
    if (is_joined_) return;
    if (earlier_)
      op_->backward_both({.first = backward_args(run), .second = earlier_->backward_args(run)}, memory(run),
                         run.stream);
    else
      op_->backward(backward_args(run), memory(run), run.stream);
  }

  std::vector<const Op*> ops() const override { return {op_.get()}; }
  std::vector<ParameterUse*> parameters() override { return {&gamma_, &beta_}; }
  std::vector<ParameterUse*> written_parameters() override {
    if (!earlier_) return parameters();
    return {&gamma_, &beta_, &earlier_->gamma_, &earlier_->beta_};
  }
  /// It sums statistics over micro-batches and ranks, and its outputs for its neighbours are a few kilobytes.
  Recomputation recomputation() const override { return Recomputation::keep; }

 private:
  /// If the results of two norms are added, the later one does the work of both in one call, in forward and backward:
  /// nothing reads the results of the earlier one before that. Sums over ranks stay where they are.
  void join_earlier() {
    if (!norm_->other || synchronize_) return;
    auto* const other = static_cast<BatchNormNode*>(norm_->other->node);
    if (!other->op_ || other->inference_ || other->synchronize_) return;
    const BatchNormDescription &a = description_, &b = other->description_;
    if (a.x != b.x || a.dtype != b.dtype || a.layout != b.layout || a.n_rows != b.n_rows || a.epsilon != b.epsilon)
      return;
    earlier_ = other;
    other->is_joined_ = true;
    reads(Phase::forward, other->norm_->statistics);
    for (TensorId t :
         {other->norm_->scale_bias, other->norm_->low_precision_scale_bias, other->norm_->mean_inverse_stddev})
      writes(Phase::forward, t);
  }

  BatchNorm::Finalize finalize_args(const Run& run) {
    TypedSums statistics(run.tensor(norm_->statistics), norm_->statistics_dtype);
    if (synchronize_) statistics = forward_sum_.sum(run);
    return {.statistics = statistics,
            .gamma = gamma_.master(run),
            .beta = beta_.master(run),
            .scale_bias = run.tensor<float>(norm_->scale_bias),
            .mean_inverse_stddev = run.tensor<float>(norm_->mean_inverse_stddev),
            .batch_statistics = run.batch_statistic(statistic_),
            .batch_statistics_weight = weight_,
            .batch_statistics_mode = run.gradients.mode,
            .low_precision_scale_bias = run.tensor(norm_->low_precision_scale_bias)};
  }

  BatchNorm::Backward backward_args(const Run& run) {
    TypedSums local_sums;
    if (!is_frozen_) local_sums = {run.tensor(norm_->sums), norm_->sums_dtype};
    return {.sums = synchronize_ ? TypedSums(backward_sum_.sum(run)) : local_sums,
            .local_sums = local_sums,
            .dz = run.tensor(dz_),
            .x = run.tensor(x_),
            .gamma = gamma_.master(run),
            .mean_inverse_stddev = run.tensor<float>(norm_->mean_inverse_stddev),
            .dx = run.tensor(dx_),
            .dgamma = gamma_.gradient(run),
            .dbeta = beta_.gradient(run),
            .parameter_mode = gamma_.mode(run)};
  }

  ActivationId raw_;
  std::shared_ptr<NormTensors> norm_;
  ParameterUse gamma_, beta_;
  int statistic_;
  BatchNormOptions options_;
  BatchNormDescription description_;
  std::unique_ptr<BatchNorm> op_;
  BatchNormNode* earlier_ = nullptr;  // this node also does the work of that earlier norm
  bool is_joined_ = false;            // a later norm does the work of this node
  bool is_frozen_ = false;
  bool inference_ = false;  // normalises with the running statistics
  bool synchronize_ = false;
  float weight_ = 1;
  std::int64_t channels_ = 0;
  SumOverRanks forward_sum_, backward_sum_;
  TensorId dz_ = kNoTensor, dx_ = kNoTensor, x_ = kNoTensor;
};

}  // namespace

ActivationId batch_norm(Graph& graph, ActivationId x, const std::string& name, const BatchNormOptions& options) {
  const Activation& raw = graph.activation(x);
  auto* const producer = dynamic_cast<StatisticsProducer*>(raw.producer);
  require(!raw.pending && producer, ErrorCode::internal, "{}: a batch norm must follow a convolution", name);
  const Shape shape = raw.shape;
  const Shape channels{shape[3]};
  ParameterTable& table = graph.parameters();
  const ParameterId gamma = table.parameter({.name = name + ".weight",
                                             .shape = channels,
                                             .kind = ParameterKind::norm,
                                             .initial = {.kind = Initializer::Kind::constant, .value = options.gamma},
                                             .trainable = options.trainable});
  const ParameterId beta = table.parameter(
      {.name = name + ".bias", .shape = channels, .kind = ParameterKind::norm, .trainable = options.trainable});
  require_frozen_together(table, gamma, beta);
  const bool trainable = table[gamma].trainable;
  const auto norm = std::make_shared<NormTensors>();
  if (graph.training() && trainable) {
    norm->statistics =
        graph.memory().add(name + " statistics", 2 * static_cast<std::size_t>(shape[3]) * sizeof(double));
    norm->is_synchronized = options.synchronize;
    producer->give_statistics(norm);
  }
  const ActivationId z = graph.add_activation(
      {.name = name, .shape = shape, .dtype = raw.dtype, .pending = std::make_shared<PendingNormalization>(x, norm)});
  norm->applied_in = z;
  graph.add_node<BatchNormNode>(name, x, z, norm, gamma, beta, table.running_statistic(name, shape[3], trainable),
                                options);
  return z;
}

bool extend_with_relu(Graph& graph, ActivationId x) {
  PendingNormalization* p = pending_normalization(graph, x);
  if (!p || p->relu) return false;
  p->relu = true;
  return true;
}

bool extend_with_residual(Graph& graph, ActivationId a, ActivationId b) {
  PendingNormalization* sum = pending_normalization(graph, a);
  if (!sum || sum->relu || sum->residual != kNoActivation) return false;
  sum->added = b;
  PendingNormalization* other = pending_normalization(graph, b);
  if (other && !other->relu && other->residual == kNoActivation) {
    sum->residual = other->raw;
    sum->residual_norm = other->norm;
    other->norm->applied_in = a;
    sum->norm->other = other->norm.get();
    other->norm->other = sum->norm.get();
  } else {
    sum->residual = b;
  }
  return true;
}

}  // namespace lockstep::layers
