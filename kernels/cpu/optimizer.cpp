// SGD, AdamW and LARS over the whole parameter arena in one pass (lockstep/ops/optimizer.h has the formulas). Segments
// are cut into blocks, which are divided among threads. LARS computes its norms in a pass before that. The same pass
// writes the bf16 weights, which costs 2 bytes per element. Without them, SGD moves 12 bytes per element, 20 with
// momentum, and AdamW 28; AdamW moves 14 where gradients, moments and weights are all bf16 only.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <memory>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/segment_blocks.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/ops/optimizer.h"

namespace lockstep::cpu {

struct SgdTask {
  float* parameters = nullptr;
  Bf16* weights = nullptr;  // rounded parameters; null if there are none
  const float* gradients = nullptr;
  float* velocity = nullptr;
  float learning_rate = 0, momentum = 0, weight_decay = 0, clip_coefficient = 1;
  bool nesterov = false;
};

/// Elements whose random bits exist at once.
inline constexpr std::size_t kRandomElements = 2048;

struct AdamwTask {
  float* parameters = nullptr;  // null: the weights are the parameters
  Bf16* weights = nullptr;
  const void* gradients = nullptr;
  void* first_moment = nullptr;
  void* second_moment = nullptr;
  const std::uint16_t* random = nullptr;  // kRandomElements for each RoundedValue; null: nothing is rounded with them
  const std::uint16_t* random_of(RoundedValue value) const {
    return random + static_cast<std::size_t>(value) * kRandomElements;
  }
  float keep = 1;  // 1 - learning_rate * weight_decay
  float one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0;
  float root_correction2 = 1;  // sqrt(1 / (1 - beta2^t))
  float step_size = 0;         // learning_rate / (1 - beta1^t)
  float epsilon = 0, clip_coefficient = 1;
};

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/optimizer_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

class CpuOptimizer final : public CpuOp<OptimizerDescription> {
 public:
  CpuOptimizer(const OptimizerDescription& d, const CpuContext& context)
      : PlannedOp(d, context),
        blocks_(cut_into_blocks(d.segments, d.rounds_stochastically() ? kRandomElements : kBlockElements)),
        parts_(part_count(context, static_cast<std::int64_t>(total_elements(blocks_) * 3 * sizeof(float)))) {}

  OpMemoryRequirements memory_requirements() const override {
    return {.forward_workspace_bytes = d_.kind == Kind::lars ? blocks_.size() * sizeof(BlockNorms) : 0};
  }

  std::string describe() const override { return "own kernel: " + optimizer_text(d_); }

  void run_apply(const Apply& args, const OpMemory& memory, Stream&) override {
    if (args.scalars->is_applied == 0) return;
    switch (d_.kind) {
      case Kind::sgd:
        return apply_sgd(args);
      case Kind::adamw:
        return apply_adamw(args);
      case Kind::lars:
        return apply_lars(args, static_cast<BlockNorms*>(memory.workspace));
    }
  }

 private:
  using Kind = OptimizerDescription::Kind;
  struct BlockNorms {
    double parameters = 0, gradients = 0;  // sums of squares
    double trust_ratio = 1;                // of the block's segment
  };

  /// Calls work(index) for all blocks, which are divided among threads.
  template <typename Work>
  void for_blocks(const Work& work) const {
    run_ranges(parts_, static_cast<std::int64_t>(blocks_.size()), [&](Range range) {
      for (std::int64_t i = range.begin; i < range.end; ++i) work(static_cast<std::size_t>(i));
    });
  }

  bool writes_weights() const { return d_.weight_dtype != DType::fp32; }
  Bf16* weights_of(const Apply& args, const ParameterSegment& block) const {
    if (!writes_weights()) return nullptr;
    return static_cast<Bf16*>(args.weights) + (d_.weights_are_sharded ? block.stored() : block.begin - d_.first);
  }
  std::size_t place_of_parameters(const ParameterSegment& block) const {
    return d_.parameters_are_sharded ? block.stored() : block.begin - d_.first;
  }

  template <typename G>
  const G* gradients_of(const Apply& args, const ParameterSegment& block) const {
    return static_cast<const G*>(args.gradients) + (d_.gradients_are_sharded ? block.stored() : block.begin - d_.first);
  }

  SgdTask sgd_task(const Apply& args, const ParameterSegment& block) const {
    return {.parameters = args.parameters + place_of_parameters(block),
            .weights = weights_of(args, block),
            .gradients = gradients_of<float>(args, block),
            .velocity = args.state ? static_cast<float*>(args.state) + block.stored() : nullptr,
            .learning_rate = args.scalars->learning_rate * block.learning_rate_factor,
            .momentum = d_.momentum,
            .weight_decay = d_.decay_of(block),
            .clip_coefficient = args.scalars->clip_coefficient,
            .nesterov = d_.nesterov};
  }

  void apply_sgd(const Apply& args) const {
    for_blocks([&](std::size_t i) {
      const ParameterSegment& block = blocks_[i];
      LOCKSTEP_DISPATCH(sgd)(sgd_task(args, block), 0, block.n_elements);
    });
  }

  // ratio * (clip * g + decay * w) is SGD with both coefficients multiplied by the ratio.
  void apply_lars(const Apply& args, BlockNorms* norms) const {
    for_blocks([&](std::size_t i) {
      const ParameterSegment& block = blocks_[i];
      norms[i] = {};
      if (!block.decay) return;
      norms[i].parameters = LOCKSTEP_DISPATCH(sum_of_squares<float>)(args.parameters + block.begin, block.n_elements);
      norms[i].gradients = LOCKSTEP_DISPATCH(sum_of_squares<float>)(gradients_of<float>(args, block), block.n_elements);
    });
    set_trust_ratios(norms, args.scalars->clip_coefficient);
    for_blocks([&](std::size_t i) {
      const ParameterSegment& block = blocks_[i];
      SgdTask scaled = sgd_task(args, block);
      scaled.clip_coefficient = static_cast<float>(norms[i].trust_ratio * scaled.clip_coefficient);
      scaled.weight_decay = static_cast<float>(norms[i].trust_ratio * scaled.weight_decay);
      LOCKSTEP_DISPATCH(sgd)(scaled, 0, block.n_elements);
    });
  }

  /// Runs on one thread: adds up the blocks of each segment in order. The blocks of a segment are consecutive.
  void set_trust_ratios(BlockNorms* norms, double clip_coefficient) const {
    const OptimizerDescription& d = d_;
    std::size_t begin = 0;
    for (const ParameterSegment& segment : d.segments) {
      std::size_t end = begin;
      BlockNorms total;
      for (; end < blocks_.size() && blocks_[end].begin < segment.begin + segment.n_elements; ++end) {
        total.parameters += norms[end].parameters;
        total.gradients += norms[end].gradients;
      }
      const double w = std::sqrt(total.parameters), g = std::sqrt(total.gradients) * clip_coefficient;
      if (w > 0 && g > 0) {
        const double ratio = d.trust_coefficient * w / (g + double{d.decay_of(segment)} * w + double{d.epsilon});
        for (std::size_t i = begin; i < end; ++i) norms[i].trust_ratio = ratio;
      }
      begin = end;
    }
  }

  // The scalars are combined in fp64 and rounded once, as in PyTorch, where they are Python numbers.
  void apply_adamw(const Apply& args) const {
    const OptimizerDescription& d = d_;
    const StepScalars& s = *args.scalars;
    const AdamwTask of_all{.one_minus_beta1 = static_cast<float>(1.0 - d.beta1),
                           .beta2 = static_cast<float>(d.beta2),
                           .one_minus_beta2 = static_cast<float>(1.0 - d.beta2),
                           .root_correction2 = static_cast<float>(std::sqrt(double{s.adam_correction2})),
                           .epsilon = d.epsilon,
                           .clip_coefficient = s.clip_coefficient};
    for_blocks([&](std::size_t i) {
      const ParameterSegment& block = blocks_[i];
      const double learning_rate = double{s.learning_rate} * block.learning_rate_factor;
      AdamwTask task = of_all;
      if (d.has_masters) task.parameters = args.parameters + place_of_parameters(block);
      task.weights = weights_of(args, block);
      alignas(64) std::array<std::uint32_t, 3 * kRandomElements / 2> random;
      if (d.rounds_stochastically()) task.random = draw(s.step, block, random.data());
      task.keep = static_cast<float>(1.0 - learning_rate * d.decay_of(block));
      task.step_size = static_cast<float>(learning_rate * s.adam_correction1);
      with_elements(d.gradient_dtype, [&]<typename G>(G) {
        with_elements(d.state_dtype, [&]<typename M>(M) {
          task.gradients = gradients_of<G>(args, block);
          task.first_moment = static_cast<M*>(args.state) + block.stored();
          task.second_moment = static_cast<M*>(args.state) + d.n_elements + block.stored();
          LOCKSTEP_DISPATCH(adamw<G, M>)(task, block.n_elements);
        });
      });
    });
  }

  /// The random bits of a block; segments begin at multiples of eight elements.
  const std::uint16_t* draw(std::uint32_t step, const ParameterSegment& block, std::uint32_t* out) const {
    for (const auto value : {RoundedValue::weight, RoundedValue::first_moment, RoundedValue::second_moment})
      LOCKSTEP_DISPATCH(fill_random_bits)
    (d_.seed, step, block.begin / 8, (block.n_elements + 7) / 8, value,
     out + static_cast<std::size_t>(value) * kRandomElements / 2);
    return reinterpret_cast<const std::uint16_t*>(out);
  }

  std::vector<ParameterSegment> blocks_;
  int parts_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerDescription& d, const CpuContext& context) {
  require_float_or_bf16(d.weight_dtype, "The optimizer");
  d.check();
  return std::make_unique<CpuOptimizer>(d, context);
}

}  // namespace lockstep::cpu
