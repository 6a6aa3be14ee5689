#include "kernels/cpu/optimizer.h"

#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/pieces.h"
#include "kernels/cpu/simd.h"
#include "lockstep/error.h"

namespace lockstep::cpu {

struct SgdTask {
  float* parameters = nullptr;
  const float* gradients = nullptr;
  float* velocity = nullptr;
  float learning_rate = 0, momentum = 0, weight_decay = 0, clip_coefficient = 1;
  bool nesterov = false;
};

struct AdamwTask {
  float* parameters = nullptr;
  const float* gradients = nullptr;
  float* first_moment = nullptr;
  float* second_moment = nullptr;
  float keep = 1;  // 1 - learning_rate * weight_decay
  float one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0;
  float root_correction2 = 1;  // sqrt(1 / (1 - beta2^t))
  float step_size = 0;         // learning_rate / (1 - beta1^t)
  float epsilon = 0, clip_coefficient = 1;
};

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/optimizer_kernels.h"
#include "kernels/cpu/each_isa.h"

namespace lockstep::cpu {
namespace {

class CpuOptimizer final : public Optimizer {
 public:
  CpuOptimizer(const OptimizerDescription& d, const CpuContext& context)
      : description_(d),
        pieces_(cut_into_pieces(d.segments)),
        parts_(part_count(context, static_cast<std::int64_t>(total_elements(pieces_) * 3 * sizeof(float)))) {}

  OpNeeds needs() const override { return {}; }

  std::string describe() const override {
    const char* kind = description_.kind == OptimizerDescription::Kind::sgd ? "SGD" : "AdamW";
    return std::string("own kernel: ") + kind + " in one pass over parameters, gradients and state";
  }

  void apply(const Apply& args, const OpMemory&, Stream&) override {
    if (args.scalars->is_applied == 0) return;
    if (description_.kind == OptimizerDescription::Kind::sgd)
      apply_sgd(args);
    else
      apply_adamw(args);
  }

 private:
  /// Calls work(piece) for all pieces, shared among the threads.
  template <typename Work>
  void for_pieces(const Work& work) const {
    run_parts(parts_, [&](int part) {
      const Range range = part_of(static_cast<std::int64_t>(pieces_.size()), part, parts_);
      for (std::int64_t i = range.begin; i < range.end; ++i) work(pieces_[static_cast<std::size_t>(i)]);
    });
  }

  void apply_sgd(const Apply& args) const {
    SgdTask decayed{.parameters = args.parameters,
                    .gradients = args.gradients,
                    .velocity = args.state,
                    .learning_rate = args.scalars->learning_rate,
                    .momentum = description_.momentum,
                    .weight_decay = description_.weight_decay,
                    .clip_coefficient = args.scalars->clip_coefficient,
                    .nesterov = description_.nesterov};
    SgdTask plain = decayed;
    plain.weight_decay = 0;
    for_pieces([&](const ParameterSegment& piece) {
      LOCKSTEP_DISPATCH(sgd)(piece.decay ? decayed : plain, piece.begin, piece.begin + piece.n_elements);
    });
  }

  // The scalars are combined in fp64 and rounded once, as PyTorch's are (they are Python's numbers there).
  void apply_adamw(const Apply& args) const {
    const OptimizerDescription& d = description_;
    const StepScalars& s = *args.scalars;
    const double learning_rate = s.learning_rate;
    AdamwTask decayed{.parameters = args.parameters,
                      .gradients = args.gradients,
                      .first_moment = args.state,
                      .second_moment = args.state + d.n_elements,
                      .keep = static_cast<float>(1.0 - learning_rate * d.weight_decay),
                      .one_minus_beta1 = static_cast<float>(1.0 - d.beta1),
                      .beta2 = static_cast<float>(d.beta2),
                      .one_minus_beta2 = static_cast<float>(1.0 - d.beta2),
                      .root_correction2 = static_cast<float>(std::sqrt(double{s.adam_correction2})),
                      .step_size = static_cast<float>(learning_rate * s.adam_correction1),
                      .epsilon = d.epsilon,
                      .clip_coefficient = s.clip_coefficient};
    AdamwTask plain = decayed;
    plain.keep = 1;
    for_pieces([&](const ParameterSegment& piece) {
      LOCKSTEP_DISPATCH(adamw)(piece.decay ? decayed : plain, piece.begin, piece.begin + piece.n_elements);
    });
  }

  OptimizerDescription description_;
  std::vector<ParameterSegment> pieces_;
  int parts_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerDescription& d, const CpuContext& context) {
  for (const ParameterSegment& segment : d.segments)
    require(segment.begin + segment.n_elements <= d.n_elements, ErrorCode::internal,
            "A parameter at elements {} to {} does not lie in the arena of {}.", segment.begin,
            segment.begin + segment.n_elements, d.n_elements);
  return std::make_unique<CpuOptimizer>(d, context);
}

}  // namespace lockstep::cpu
