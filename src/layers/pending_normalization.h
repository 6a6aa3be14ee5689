// A batch norm, possibly with a residual and ReLU, that has not been applied to a raw tensor yet: a pending
// normalisation (lockstep/ops/normalization.h), so that each convolution and its neighbours are one op, fused as far as
// the backend can.
//
// The convolution before the norm computes the sums of its output (StatisticsProducer), the norm's own node turns them
// into scale and bias, and the first convolution or pooling that reads the result applies them (NormalizedInput).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "graph/graph.h"
#include "lockstep/ops/normalization.h"

namespace lockstep::layers {

/// The tensors of one batch norm that its neighbours read and write.
struct NormTensors {
  graph::TensorId statistics = graph::kNoTensor;                   // (2, C), by the producer of the raw activation
  graph::TensorId scale_bias = graph::kNoTensor;                   // (2, C)
  graph::TensorId low_precision_scale_bias = graph::kNoTensor;     // (2, C) in the activation's type; none in fp32
  graph::TensorId mean_inverse_stddev = graph::kNoTensor;          // (2, C)
  graph::TensorId sums = graph::kNoTensor;                         // (2, C), by the owner in backward
  DType statistics_dtype = DType::fp64, sums_dtype = DType::fp64;  // or fp32, as the ops that compute them choose
  bool is_synchronized = false;                                    // its sums are added over ranks, in fp64
  const graph::ParameterUse *gamma = nullptr, *beta = nullptr;     // of the norm's node
  graph::Node* node = nullptr;                                     // the norm's node
  NormTensors* other = nullptr;  // the norm whose result is added to that of this one; null: there is none
  graph::ActivationId applied_in = graph::kNoActivation;  // the pending activation it is part of
};

class PendingNormalization final : public graph::Pending {
 public:
  PendingNormalization(graph::ActivationId raw_, std::shared_ptr<NormTensors> norm_)
      : raw(raw_), norm(std::move(norm_)) {}
  /// A residual with a norm of its own is raw, and nothing else reads it.
  std::vector<graph::ActivationId> reads() const override {
    if (residual == graph::kNoActivation || residual_norm) return {};
    return {residual};
  }

  std::vector<graph::ActivationId> gradient_sources() const override {
    if (added == graph::kNoActivation) return {};
    return {added};
  }

  graph::ActivationId raw;
  std::shared_ptr<NormTensors> norm;
  bool relu = false;
  graph::ActivationId added = graph::kNoActivation;     // what the layer added
  graph::ActivationId residual = graph::kNoActivation;  // what is read: `added`, or the raw tensor before its norm
  std::shared_ptr<NormTensors> residual_norm{};         // null: the residual is a plain or stored activation
};

/// Null if the activation is plain.
PendingNormalization* pending_normalization(graph::Graph& graph, graph::ActivationId id);

/// ReLU, or the addition of `b`, becomes part of the pending `x` or `a`; false if that is not possible.
bool extend_with_relu(graph::Graph& graph, graph::ActivationId x);
bool extend_with_residual(graph::Graph& graph, graph::ActivationId a, graph::ActivationId b);

/// A node that can compute the sums of its output that a batch norm needs.
class StatisticsProducer {
 public:
  virtual ~StatisticsProducer() = default;
  /// `norm`: the forward pass overwrites its `statistics` with the sum and the sum of squares per channel. The producer
  /// records their type when it is planned.
  virtual void give_statistics(std::shared_ptr<NormTensors> norm) = 0;
};

/// How a convolution or pooling reads its input: plain, or with a pending normalisation that it owns. Stores the
/// tensors and turns them into the arguments of the op.
class NormalizedInput {
 public:
  explicit NormalizedInput(graph::ActivationId input) : input_(input) {}

  graph::ActivationId id() const { return input_; }
  /// Creates the forward tensors; normalization() is then what the op's description needs.
  void plan(graph::Graph& graph, graph::Node& node);
  const std::optional<InputNormalization>& normalization() const { return normalization_; }
  /// Whether the op may give the sums of the normalisation in fp32; if it does, the node says so.
  bool allows_fp32_sums() const;
  void give_sums_as(DType dtype);
  /// Creates the backward tensors: the gradient of the input, through the normalisation if there is one.
  void plan_backward(graph::Graph& graph, graph::Node& node);

  /// What the gradient of a weight that multiplies the input reads.
  std::vector<graph::TensorId> weight_gradient_reads() const;

  const void* x(const graph::Run& run) const { return run.tensor(x_); }
  NormalizationForward forward_args(const graph::Run& run) const;
  NormalizationBackward backward_args(const graph::Run& run) const;
  void* dx(const graph::Run& run) const { return run.tensor(dx_.tensor); }
  GradientMode dx_mode() const { return dx_.mode; }

 private:
  graph::ActivationId input_;
  std::optional<InputNormalization> normalization_;
  graph::TensorId x_ = graph::kNoTensor, z_ = graph::kNoTensor, residual_ = graph::kNoTensor;
  std::shared_ptr<NormTensors> norm_, residual_norm_;  // null: there is none
  graph::TensorId scale_bias_ = graph::kNoTensor, residual_scale_bias_ = graph::kNoTensor;
  graph::TensorId low_precision_scale_bias_ = graph::kNoTensor, low_precision_residual_scale_bias_ = graph::kNoTensor;
  graph::TensorId mean_inverse_stddev_ = graph::kNoTensor, residual_mean_inverse_stddev_ = graph::kNoTensor;
  graph::TensorId added_ = graph::kNoTensor, dz_ = graph::kNoTensor;
  graph::TensorId sums_ = graph::kNoTensor, residual_sums_ = graph::kNoTensor;
  graph::Graph::GradientTarget dx_;
};

}  // namespace lockstep::layers
