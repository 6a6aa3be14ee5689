#include "layers/pending_normalization.h"

#include "lockstep/error.h"
#include "lockstep/ops/normalization.h"

namespace lockstep::layers {

using namespace graph;  // NOLINT(google-build-using-namespace): this file uses little else

PendingNormalization* pending_normalization(Graph& graph, ActivationId id) {
  return dynamic_cast<PendingNormalization*>(graph.activation(id).pending.get());
}

void NormalizedInput::plan(Graph& graph, Node& node) {
  const Activation& a = graph.activation(input_);
  const PendingNormalization* p = pending_normalization(graph, input_);
  if (!p || a.owner != &node) {
    x_ = graph.data_of(input_, node);
    return;
  }
  normalization_ =
      InputNormalization{.residual = InputNormalization::Residual::none, .relu = p->relu, .store = a.n_readers > 1};
  x_ = graph.data_of(p->raw, node);
  norm_ = p->norm;
  scale_bias_ = norm_->scale_bias;
  low_precision_scale_bias_ = norm_->low_precision_scale_bias;
  if (p->residual != kNoActivation) {
    residual_ = graph.data_of(p->residual, node);
    normalization_->residual = InputNormalization::Residual::plain;
  }
  if (p->residual_norm) {
    residual_norm_ = p->residual_norm;
    residual_scale_bias_ = residual_norm_->scale_bias;
    low_precision_residual_scale_bias_ = residual_norm_->low_precision_scale_bias;
    normalization_->residual = InputNormalization::Residual::normalized;
  }
  for (TensorId t : {scale_bias_, residual_scale_bias_, low_precision_scale_bias_, low_precision_residual_scale_bias_})
    node.reads(Phase::forward, t);
  if (normalization_->store) z_ = graph.make_data(input_, node);
}

bool NormalizedInput::allows_fp32_sums() const {
  return !(norm_ && norm_->is_synchronized) && !(residual_norm_ && residual_norm_->is_synchronized);
}

void NormalizedInput::give_sums_as(DType dtype) {
  if (norm_) norm_->sums_dtype = dtype;
  if (residual_norm_) residual_norm_->sums_dtype = dtype;
}

void NormalizedInput::plan_backward(Graph& graph, Node& node) {
  Activation& a = graph.activation(input_);
  MemoryPlan& memory = graph.memory();
  node.reads(Phase::backward, x_);
  if (!normalization_) {
    dx_ = graph.gradient_target(input_, node);
    return;
  }
  const PendingNormalization& p = *pending_normalization(graph, input_);
  if (!a.needs_gradient) {  // everything before this is frozen: only the gradient of the weights reads the input
    for (TensorId t : {z_, residual_, scale_bias_, residual_scale_bias_, low_precision_scale_bias_,
                       low_precision_residual_scale_bias_})
      node.reads(Phase::backward, t);
    return;
  }
  mean_inverse_stddev_ = p.norm->mean_inverse_stddev;
  added_ = a.gradient;
  for (TensorId t : {z_, residual_, scale_bias_, residual_scale_bias_, low_precision_scale_bias_,
                     low_precision_residual_scale_bias_, mean_inverse_stddev_, added_})
    node.reads(Phase::backward, t);
  const std::size_t sums_bytes = 2 * static_cast<std::size_t>(a.shape[3]) * size_bytes(norm_->sums_dtype);
  p.norm->sums = sums_ = memory.add(a.name + " sums", sums_bytes);
  a.gradient = dz_ = memory.add("dz " + a.name, a.size_bytes());
  for (TensorId t : {sums_, dz_}) node.writes(Phase::backward, t);
  if (p.residual_norm) {
    residual_mean_inverse_stddev_ = p.residual_norm->mean_inverse_stddev;
    node.reads(Phase::backward, residual_mean_inverse_stddev_);
    p.residual_norm->sums = residual_sums_ = memory.add(a.name + " residual sums", sums_bytes);
    node.writes(Phase::backward, residual_sums_);
  } else if (p.residual != kNoActivation) {
    // The gradient of a plain residual is dz itself, without a copy. Later contributions are added to it, which is safe
    // because the norm's backward, the other reader of dz, runs directly after this node.
    Activation& r = graph.activation(p.residual);
    require(r.gradient == kNoTensor, ErrorCode::internal,
            "{}: {} is read after {} and before it is used as a residual; gradients would need a copy", node.name(),
            r.name, a.name);
    if (r.needs_gradient) r.gradient = dz_;
  }
}

std::vector<TensorId> NormalizedInput::weight_gradient_reads() const {
  return {x_, z_, scale_bias_, low_precision_scale_bias_};
}

NormalizationForward NormalizedInput::forward_args(const Run& run) const {
  return {.scale_bias = run.tensor<const float>(scale_bias_),
          .residual = run.tensor(residual_),
          .residual_scale_bias = run.tensor<const float>(residual_scale_bias_),
          .z = run.tensor(z_),
          .low_precision_scale_bias = run.tensor(low_precision_scale_bias_),
          .low_precision_residual_scale_bias = run.tensor(low_precision_residual_scale_bias_)};
}

NormalizationBackward NormalizedInput::backward_args(const Run& run) const {
  if (sums_ == kNoTensor) return {};
  const auto master = [&](const ParameterUse* use) { return use ? use->master(run) : nullptr; };
  return {.mean_inverse_stddev = run.tensor<const float>(mean_inverse_stddev_),
          .residual_mean_inverse_stddev = run.tensor<const float>(residual_mean_inverse_stddev_),
          .added = run.tensor(added_),
          .dz = run.tensor(dz_),
          .sums = {run.tensor(sums_), norm_->sums_dtype},
          .residual_sums = {run.tensor(residual_sums_), norm_->sums_dtype},
          .gamma = master(norm_->gamma),
          .beta = master(norm_->beta),
          .residual_gamma = residual_norm_ ? master(residual_norm_->gamma) : nullptr,
          .residual_beta = residual_norm_ ? master(residual_norm_->beta) : nullptr};
}

}  // namespace lockstep::layers
