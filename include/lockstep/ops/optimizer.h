// The update of all parameters. g is the gradient times StepScalars::clip_coefficient.
// SGD as in PyTorch: g += decay*w; v = momentum*v + g (first step: v = g); g = nesterov ? g + momentum*v : v; w -= lr*g
// AdamW as in PyTorch (decoupled decay): w *= 1 - lr*decay; m += (1-beta1)*(g - m); v = beta2*v + (1-beta2)*g^2;
//     w -= lr * m*c1 / (sqrt(v*c2) + epsilon), with c1, c2 the adam_correction1 and 2 of StepScalars
// LARS (You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017, algorithm 1): SGD with
//     g + decay*w multiplied by the trust ratio  trust_coefficient * |w| / (|g| + decay*|w| + epsilon)
// of each segment that decays. The norms are Euclidean, of the clipped g; the ratio is 1 where |w| or |g| is 0. As in
// implementations for PyTorch, the learning rate stays outside of the momentum. The paper has it inside, which makes a
// difference when the learning rate changes. Norms are summed in fp64, in a fixed order.
// lr is StepScalars::learning_rate times the segment's factor, decay is that of the segment (0 where it has none).
// Where weight_dtype is bf16 or fp16, the new parameters are also written in that type, rounded to nearest, ties to
// even: these are the weights that ops of the next step read. A skipped step (StepScalars::is_applied 0) leaves
// parameters, weights and state unchanged; it still counts for the correction of the next step. Planning throws
// not_supported for a weight_dtype that the backend does not support, and internal if a segment is outside of the
// arena.
#pragma once

#include <string>
#include <vector>

#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/op.h"
#include "lockstep/ops/parameter_segment.h"
#include "lockstep/ops/step_scalars.h"

namespace lockstep {

struct OptimizerDescription {
  using Op = class Optimizer;
  static constexpr std::string_view kName = "optimizer";

  enum class Kind : std::uint8_t { sgd, adamw, lars };
  Kind kind = Kind::sgd;
  float momentum = 0;
  bool nesterov = false;
  float weight_decay = 0;
  double beta1 = 0.9;  // double, since AdamW computes 1 - beta
  double beta2 = 0.999;
  float epsilon = 1e-8f;
  float trust_coefficient = 0.001f;
  std::vector<ParameterSegment> segments{};
  std::size_t n_elements = 0;        // of one state
  DType weight_dtype = DType::fp32;  // of the rounded weights; fp32: there are none

  /// A rank keeps only its shard of the state: segments are cut to it, and their state is at stored_begin. The
  /// parameters may be kept in the same way. Not for lars, whose norms are over whole segments.
  bool parameters_are_sharded = false;

  /// Throws internal if the state of a segment is outside of the arena.
  void require_segments_inside() const {
    for (const ParameterSegment& segment : segments)
      require(segment.stored() + segment.n_elements <= n_elements, ErrorCode::internal,
              "a parameter at elements {} to {} is outside of the arena of {} elements", segment.stored(),
              segment.stored() + segment.n_elements, n_elements);
  }
  /// The weight decay of a segment.
  float decay_of(const ParameterSegment& segment) const {
    return segment.decay ? segment.weight_decay.value_or(weight_decay) : 0.0f;
  }
  /// fp32 values per parameter: 0, 1 (momentum) or 2 (moments), one after the other.
  int n_states() const { return kind == Kind::adamw ? 2 : (momentum != 0.0f ? 1 : 0); }
};

/// "SGD in one pass over parameters, gradients and state, writes bf16 weights"
inline std::string optimizer_text(const OptimizerDescription& d) {
  using Kind = OptimizerDescription::Kind;
  return fmt::format("{} parameters, gradients and state{}",
                     d.kind == Kind::sgd     ? "SGD in one pass over"
                     : d.kind == Kind::adamw ? "AdamW in one pass over"
                                             : "LARS, a pass for norms and one over",
                     d.weight_dtype == DType::fp32 ? "" : fmt::format(", writes {} weights", name(d.weight_dtype)));
}

struct OptimizerCalls {
  struct Apply {
    float* parameters = nullptr;
    void* weights = nullptr;  // in weight_dtype, at the same offsets as the parameters
    const float* gradients = nullptr;
    float* state = nullptr;  // zero before step 0; (n_states, n_elements)
    const StepScalars* scalars = nullptr;
  };
};

class Optimizer : public ApplyOp<OptimizerDescription, OptimizerCalls> {};

}  // namespace lockstep
