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
// not_supported for types that the backend does not support, and internal if a segment is outside of the arena.
//
// AdamW can keep its state, its parameters or both in bf16 only. They are then rounded stochastically: to one of the
// two neighbours, with a probability that is proportional to the distance from the other, so that small updates are not
// lost on average. random_bits() makes the same random numbers on any device and on any number of ranks.
#pragma once

#include <array>
#include <bit>
#include <string>
#include <vector>

#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/host_device.h"
#include "lockstep/op.h"
#include "lockstep/ops/parameter_segment.h"
#include "lockstep/ops/step_scalars.h"
#include "lockstep/philox.h"

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

  // For adamw with bf16 weights
  DType gradient_dtype = DType::fp32;  // fp32 or bf16
  DType state_dtype = DType::fp32;     // fp32, or bf16, rounded stochastically
  bool has_masters = true;             // false: the weights are the parameters, and rounded stochastically
  std::uint32_t seed = 1;              // of this rounding
  std::size_t first = 0;  // the element of the model at which gradients, weights and unsharded parameters begin

  bool rounds_stochastically() const { return state_dtype != DType::fp32 || !has_masters; }

  /// A rank keeps only its shard of the state: segments are cut to it, and their state is at stored_begin. The
  /// parameters may be kept in the same way. Not for lars, whose norms are over whole segments.
  bool parameters_are_sharded = false;
  /// The same for the gradients, and for the weights in weight_dtype.
  bool gradients_are_sharded = false, weights_are_sharded = false;

  /// Throws internal if the state of a segment is outside of the arena, and not_supported for types that only other
  /// optimizers have.
  void check() const {
    const bool is_narrow = rounds_stochastically() || gradient_dtype != DType::fp32;
    require(!is_narrow || (kind == Kind::adamw && weight_dtype == DType::bf16), ErrorCode::not_supported,
            "gradients, moments or parameters in bf16 only are for AdamW with bf16 weights");
    require((gradient_dtype == DType::fp32 || gradient_dtype == DType::bf16) &&
                (state_dtype == DType::fp32 || state_dtype == DType::bf16),
            ErrorCode::not_supported, "gradients in {} and a state in {}", name(gradient_dtype), name(state_dtype));
    for (const ParameterSegment& segment : segments) {
      require(!rounds_stochastically() || segment.begin % 8 == 0, ErrorCode::internal,
              "a parameter that is rounded stochastically begins at element {}", segment.begin);
      require(segment.stored() + segment.n_elements <= n_elements, ErrorCode::internal,
              "a parameter at elements {} to {} is outside of the arena of {} elements", segment.stored(),
              segment.stored() + segment.n_elements, n_elements);
    }
  }
  /// The weight decay of a segment.
  float decay_of(const ParameterSegment& segment) const {
    return segment.decay ? segment.weight_decay.value_or(weight_decay) : 0.0f;
  }
  /// Values per parameter: 0, 1 (momentum) or 2 (moments), one after the other.
  int n_states() const { return kind == Kind::adamw ? 2 : (momentum != 0.0f ? 1 : 0); }
};

/// What is rounded stochastically.
enum class RoundedValue : std::uint8_t { weight, first_moment, second_moment };

/// The random bits of elements 8 * group to 8 * group + 7 of the model, two in each number: the lower half is that of
/// the even element.
LOCKSTEP_HOST_DEVICE constexpr std::array<std::uint32_t, 4> random_bits(std::uint32_t seed, std::uint32_t step,
                                                                        std::size_t group, RoundedValue value) {
  return philox4x32({static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(std::uint64_t{group} >> 32), step,
                     static_cast<std::uint32_t>(value)},
                    {seed, static_cast<std::uint32_t>(RandomPurpose::rounding)});
}
/// bf16: the upper half of the sum is the rounded number. `random` has 16 bits. Not for NaN.
LOCKSTEP_HOST_DEVICE constexpr std::uint16_t round_stochastically(float value, std::uint32_t random) {
  return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + random) >> 16);
}

/// "SGD in one pass over parameters, gradients and state, writes bf16 weights"
inline std::string optimizer_text(const OptimizerDescription& d) {
  using Kind = OptimizerDescription::Kind;
  return fmt::format(
      "{} {}parameters, gradients{} and {}state{}",
      d.kind == Kind::sgd     ? "SGD in one pass over"
      : d.kind == Kind::adamw ? "AdamW in one pass over"
                              : "LARS, a pass for norms and one over",
      d.has_masters ? "" : "bf16 ", d.gradient_dtype == DType::fp32 ? "" : " (bf16)",
      d.state_dtype == DType::fp32 ? "" : "bf16 ",
      d.weight_dtype == DType::fp32 || !d.has_masters ? "" : fmt::format(", writes {} weights", name(d.weight_dtype)));
}

struct OptimizerCalls {
  struct Apply {
    float* parameters = nullptr;      // null without masters
    void* weights = nullptr;          // in weight_dtype
    const void* gradients = nullptr;  // in gradient_dtype
    void* state = nullptr;            // in state_dtype, zero before step 0; (n_states, n_elements)
    const StepScalars* scalars = nullptr;
  };
};

class Optimizer : public ApplyOp<OptimizerDescription, OptimizerCalls> {};

}  // namespace lockstep
