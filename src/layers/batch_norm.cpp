// Batch norm, ReLU and addition: they make and extend pending activations. The norm's own node finalises the sums
// that the convolution before it gave, and in backward turns dz and its sums into the gradient of the raw activation.
#include "graph/exchange_sum.h"
#include "layers/layers.h"
#include "lockstep/error.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node speaks of little else

class BatchNormNode final : public Node {
 public:
  BatchNormNode(std::string name, ActivationId raw, NormTensors* norm, ParameterId gamma, ParameterId beta,
                int statistic)
      : Node(std::move(name)), raw_(raw), norm_(norm), gamma_(gamma), beta_(beta), statistic_(statistic) {}

  void register_reads(Graph& graph) override { graph.read(raw_, *this); }

  void plan(Graph& graph, Backend& backend) override {
    const Activation& x = graph.activation(raw_);
    const GraphOptions& options = graph.options();
    const auto c = static_cast<std::size_t>(x.shape[3]);
    synchronize_ = options.synchronize_batch_norm && graph.training();
    const std::int64_t samples = synchronize_ ? options.global_rows : x.shape[0];
    op_ = backend.batch_norm({.x = x.shape,
                              .dtype = x.dtype,
                              .layout = x.layout,
                              .n_rows = static_cast<double>(samples * x.shape[1] * x.shape[2]),
                              .epsilon = options.batch_norm_epsilon});
    MemoryPlan& memory = graph.memory();
    const int now = forward_moment();
    norm_->scale_bias = memory.add(name() + " scale, bias", 2 * c * sizeof(float));
    memory.use(norm_->scale_bias, now);
    inference_ = !graph.training();
    if (inference_) return;
    norm_->mean_inverse_stddev = memory.add(name() + " mean, 1/stddev", 2 * c * sizeof(float));
    memory.use(norm_->mean_inverse_stddev, now);
    memory.use(norm_->statistics, now);
    weight_ = 1.0f / static_cast<float>(options.micro_batches);
    if (synchronize_) {
      forward_sum_.plan(graph, backend, name() + " statistics", 2 * c);
      backward_sum_.plan(graph, backend, name() + " gradient sums", 2 * c);
    }
  }

  void plan_backward(Graph& graph) override {
    require(norm_->applied_in != kNoActivation && norm_->sums != kNoTensor, ErrorCode::internal,
            "{}: its result is never used", name());
    const Activation& z = graph.activation(norm_->applied_in);
    Activation& x = graph.activation(raw_);
    MemoryPlan& memory = graph.memory();
    dz_ = z.gradient;
    // In place where nobody else needs dz: it is the residual's gradient, or another norm's, where there is one.
    x.gradient = z.pending->residual == kNoActivation ? dz_ : memory.add("d " + x.name, x.size_bytes());
    dx_ = x.gradient;
    x_ = x.data;
    for (TensorId t : {dz_, dx_, x_, norm_->sums, norm_->mean_inverse_stddev}) memory.use(t, backward_moment());
  }

  void bind(const Graph& graph, const Bindings& at) override {
    const ParameterTable& table = graph.parameters();
    gammas_ = at.parameters + table[gamma_].begin;
    betas_ = at.parameters + table[beta_].begin;
    dgammas_begin_ = table[gamma_].begin;
    dbetas_begin_ = table[beta_].begin;
    running_ = at.parameters + table.statistic(statistic_).begin;
    batch_statistics_begin_ = table.statistic(statistic_).begin;
    channels_ = table.statistic(statistic_).channels;
    if (!synchronize_) return;
    forward_sum_.bind(at);
    backward_sum_.bind(at);
  }

  void forward(const Run& run) override {
    if (inference_) {
      op_->finalize_inference({.running_mean = running_,
                               .running_variance = running_ + channels_,
                               .gamma = gammas_,
                               .beta = betas_,
                               .scale_bias = run.tensor<float>(norm_->scale_bias)},
                              memory(run), run.stream);
      return;
    }
    const double* statistics = run.tensor<double>(norm_->statistics);
    if (synchronize_) statistics = forward_sum_.sum(run, statistics);
    op_->finalize({.statistics = statistics,
                   .gamma = gammas_,
                   .beta = betas_,
                   .scale_bias = run.tensor<float>(norm_->scale_bias),
                   .mean_inverse_stddev = run.tensor<float>(norm_->mean_inverse_stddev),
                   .batch_statistics = run.gradients.arena + batch_statistics_begin_,
                   .batch_statistics_weight = weight_,
                   .batch_statistics_mode = run.gradients.mode},
                  memory(run), run.stream);
  }

  void backward(const Run& run) override {
    const double* local_sums = run.tensor<double>(norm_->sums);
    op_->backward({.sums = synchronize_ ? backward_sum_.sum(run, local_sums) : local_sums,
                   .local_sums = local_sums,
                   .dz = run.tensor(dz_),
                   .x = run.tensor(x_),
                   .gamma = gammas_,
                   .mean_inverse_stddev = run.tensor<float>(norm_->mean_inverse_stddev),
                   .dx = run.tensor(dx_),
                   .dgamma = run.gradients.arena + dgammas_begin_,
                   .dbeta = run.gradients.arena + dbetas_begin_,
                   .parameter_mode = run.gradients.mode},
                  memory(run), run.stream);
  }

  const Op* op() const override { return op_.get(); }
  std::vector<ParameterId> parameters() const override { return {gamma_, beta_}; }

 private:
  ActivationId raw_;
  NormTensors* norm_;
  ParameterId gamma_, beta_;
  int statistic_;
  std::unique_ptr<BatchNorm> op_;
  bool synchronize_ = false, inference_ = false;
  float weight_ = 1;
  std::int64_t channels_ = 0;
  ExchangeSum forward_sum_, backward_sum_;
  TensorId dz_ = kNoTensor, dx_ = kNoTensor, x_ = kNoTensor;
  const float *gammas_ = nullptr, *betas_ = nullptr, *running_ = nullptr;
  std::size_t dgammas_begin_ = 0, dbetas_begin_ = 0, batch_statistics_begin_ = 0;  // in the gradients' arena
};

}  // namespace

ActivationId batch_norm(Graph& graph, ActivationId x, const std::string& name, double gamma) {
  const Shape shape = graph.activation(x).shape;
  require(!graph.activation(x).pending, ErrorCode::internal, "{}: a batch norm follows a convolution", name);
  const Shape channels{shape[3]};
  ParameterTable& table = graph.parameters();
  const ParameterId gamma_id = table.parameter(name + ".weight", channels, ParameterKind::norm,
                                               {.kind = Initializer::Kind::constant, .value = gamma});
  const ParameterId beta_id = table.parameter(name + ".bias", channels, ParameterKind::norm, {});
  NormTensors* norm = graph.add_norm();
  if (graph.training()) {
    norm->statistics =
        graph.memory().add(name + " statistics", 2 * static_cast<std::size_t>(shape[3]) * sizeof(double));
    graph.activation(x).wants_statistics = true;
    graph.activation(x).statistics = norm->statistics;
  }
  const ActivationId z =
      graph.add_activation({.name = name,
                            .shape = shape,
                            .dtype = graph.activation(x).dtype,
                            .pending = Pending{.raw = x, .norm = norm, .relu = false, .residual_norm = nullptr}});
  norm->applied_in = z;
  graph.add_node<BatchNormNode>(name, x, norm, gamma_id, beta_id, table.running_statistic(name, shape[3]));
  return z;
}

ActivationId relu(Graph& graph, ActivationId x) {
  Activation& a = graph.activation(x);
  require(a.pending && !a.pending->relu, ErrorCode::internal, "{}: ReLU follows a batch norm or an addition", a.name);
  a.pending->relu = true;
  return x;
}

ActivationId add(Graph& graph, ActivationId a, ActivationId b) {
  Activation& sum = graph.activation(a);
  const Activation& other = graph.activation(b);
  require(sum.pending && !sum.pending->relu && sum.pending->residual == kNoActivation && sum.shape == other.shape,
          ErrorCode::internal, "{} + {}: the first is a batch norm without ReLU, both of one shape", sum.name,
          other.name);
  if (other.pending && !other.pending->relu && other.pending->residual == kNoActivation) {
    sum.pending->residual = other.pending->raw;
    sum.pending->residual_norm = other.pending->norm;
    other.pending->norm->applied_in = a;
  } else {
    sum.pending->residual = b;
  }
  return a;
}

}  // namespace lockstep::layers
