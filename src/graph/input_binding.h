// How a convolution or pooling reads its input: plain, or a pending normalisation of which it is the owner.
// Keeps the tensors and turns them into the arguments of op.h.
#pragma once

#include "graph/graph.h"

namespace lockstep::graph {

class InputBinding {
 public:
  explicit InputBinding(ActivationId input) : input_(input) {}

  ActivationId id() const { return input_; }
  /// Forward tensors; then normalization() is what goes into the op's description.
  void plan(Graph& graph, const Node& node);
  const std::optional<InputNormalization>& normalization() const { return normalization_; }
  /// Backward tensors: the gradient of the input, through the normalisation where there is one.
  void plan_backward(Graph& graph, const Node& node);

  const void* x(const Run& run) const { return run.tensor(x_); }
  NormalizationForward forward_args(const Run& run) const;
  NormalizationBackward backward_args(const Run& run) const;
  void* dx(const Run& run) const { return run.tensor(dx_.tensor); }
  GradientMode dx_mode() const { return dx_.mode; }

 private:
  ActivationId input_;
  std::optional<InputNormalization> normalization_;
  TensorId x_ = kNoTensor, z_ = kNoTensor, residual_ = kNoTensor;
  TensorId scale_bias_ = kNoTensor, residual_scale_bias_ = kNoTensor;
  TensorId mean_inverse_stddev_ = kNoTensor, residual_mean_inverse_stddev_ = kNoTensor;
  TensorId added_ = kNoTensor, dz_ = kNoTensor, sums_ = kNoTensor, residual_sums_ = kNoTensor;
  Graph::GradientTarget dx_;
};

}  // namespace lockstep::graph
