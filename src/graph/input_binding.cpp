#include "graph/input_binding.h"

#include "lockstep/error.h"

namespace lockstep::graph {

void InputBinding::plan(Graph& graph, const Node& node) {
  Activation& a = graph.activation(input_);
  if (!a.pending || a.owner != &node) {
    x_ = graph.data_of(input_, node);
    return;
  }
  const Pending& p = *a.pending;
  const int now = node.forward_moment();
  MemoryPlan& memory = graph.memory();
  normalization_ =
      InputNormalization{.residual = InputNormalization::Residual::none, .relu = p.relu, .store = a.n_readers > 1};
  x_ = graph.data_of(p.raw, node);
  scale_bias_ = p.norm->scale_bias;
  memory.use(scale_bias_, now);
  if (p.residual != kNoActivation) {
    residual_ = graph.data_of(p.residual, node);
    normalization_->residual = InputNormalization::Residual::plain;
  }
  if (p.residual_norm) {
    residual_scale_bias_ = p.residual_norm->scale_bias;
    memory.use(residual_scale_bias_, now);
    normalization_->residual = InputNormalization::Residual::normalized;
  }
  if (normalization_->store) z_ = graph.make_data(input_, node);
}

void InputBinding::plan_backward(Graph& graph, const Node& node) {
  Activation& a = graph.activation(input_);
  MemoryPlan& memory = graph.memory();
  const int now = node.backward_moment();
  memory.use(x_, now);
  if (!normalization_) {
    dx_ = graph.gradient_target(input_, node);
    return;
  }
  const Pending& p = *a.pending;
  for (TensorId t : {z_, residual_, scale_bias_, residual_scale_bias_}) memory.use(t, now);
  const std::size_t sums_bytes = 2 * static_cast<std::size_t>(a.shape[3]) * sizeof(double);
  mean_inverse_stddev_ = p.norm->mean_inverse_stddev;
  memory.use(mean_inverse_stddev_, now);
  p.norm->sums = sums_ = memory.add(a.name + " sums", sums_bytes);
  memory.use(sums_, now);
  added_ = a.gradient;
  memory.use(added_, now);
  a.gradient = dz_ = memory.add("dz " + a.name, a.size_bytes());
  memory.use(dz_, now);
  if (p.residual_norm) {
    residual_mean_inverse_stddev_ = p.residual_norm->mean_inverse_stddev;
    memory.use(residual_mean_inverse_stddev_, now);
    p.residual_norm->sums = residual_sums_ = memory.add(a.name + " residual sums", sums_bytes);
    memory.use(residual_sums_, now);
  } else if (p.residual != kNoActivation) {
    // The gradient of a plain residual is dz itself: no copy. Later contributions are added to it, which is safe
    // because the norm's backward, the other reader of dz, runs directly after this node.
    Activation& r = graph.activation(p.residual);
    require(r.gradient == kNoTensor, ErrorCode::internal,
            "{}: {} is read after {} and before its residual use; gradients would need a copy", node.name(), r.name,
            a.name);
    if (r.needs_gradient) r.gradient = dz_;
  }
}

NormalizationForward InputBinding::forward_args(const Run& run) const {
  return {.scale_bias = run.tensor<const float>(scale_bias_),
          .residual = run.tensor(residual_),
          .residual_scale_bias = run.tensor<const float>(residual_scale_bias_),
          .z = run.tensor(z_)};
}

NormalizationBackward InputBinding::backward_args(const Run& run) const {
  return {.mean_inverse_stddev = run.tensor<const float>(mean_inverse_stddev_),
          .residual_mean_inverse_stddev = run.tensor<const float>(residual_mean_inverse_stddev_),
          .added = run.tensor(added_),
          .dz = run.tensor(dz_),
          .sums = run.tensor<double>(sums_),
          .residual_sums = run.tensor<double>(residual_sums_)};
}

}  // namespace lockstep::graph
