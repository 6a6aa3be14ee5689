// SGD, AdamW and LARS, straight from the formulas of lockstep/ops/optimizer.h.
#include <algorithm>
#include <cmath>

#include "lockstep/bf16.h"
#include "lockstep/fp16.h"
#include "lockstep/ops/optimizer.h"
#include "test/reference/ops.h"

namespace lockstep::reference {
namespace {

class ReferenceOptimizer final : public Optimizer {
 public:
  explicit ReferenceOptimizer(const OptimizerDescription& d) : d_(d) {}
  std::string describe() const override { return "reference: all fused"; }

  void run_apply(const Apply& all, const OpMemory&, Stream&) override {
    if (all.scalars->is_applied == 0) return;
    for (const ParameterSegment& segment : d_.segments) {
      Arenas args{.parameters = all.parameters,
                  .weights = all.weights,
                  .gradients = static_cast<const float*>(all.gradients),
                  .state = static_cast<float*>(all.state),
                  .scalars = all.scalars};  // shifted so that its elements are at segment.begin
      const auto shift = static_cast<std::ptrdiff_t>(segment.stored()) - static_cast<std::ptrdiff_t>(segment.begin);
      if (args.state) args.state += shift;
      if (d_.parameters_are_sharded) args.parameters += shift;
      if (d_.gradients_are_sharded) args.gradients += shift;
      const double decay = d_.decay_of(segment),
                   rate = double{args.scalars->learning_rate} * segment.learning_rate_factor;
      const double ratio = d_.kind == Kind::lars && segment.decay ? trust_ratio(args, segment) : 1.0;
      for (std::size_t i = segment.begin; i < segment.begin + segment.n_elements; ++i) {
        const double gradient = double{args.gradients[i]} * args.scalars->clip_coefficient;
        if (d_.kind == Kind::adamw)
          adamw(args, i, gradient, decay, rate);
        else
          sgd(args, i, gradient, decay, ratio, rate);
        store_weight(args, i);
      }
    }
  }

 private:
  using Kind = OptimizerDescription::Kind;
  struct Arenas {
    float* parameters;
    void* weights;
    const float* gradients;
    float* state;
    const StepScalars* scalars;
  };

  void store_weight(const Arenas& args, std::size_t i) const {
    if (d_.weight_dtype == DType::bf16) static_cast<Bf16*>(args.weights)[i] = to_bf16(args.parameters[i]);
    if (d_.weight_dtype == DType::fp16) static_cast<Fp16*>(args.weights)[i] = to_fp16(args.parameters[i]);
  }

  double trust_ratio(const Arenas& args, const ParameterSegment& segment) const {
    double w = 0, g = 0;
    for (std::size_t i = segment.begin; i < segment.begin + segment.n_elements; ++i) {
      w = std::hypot(w, double{args.parameters[i]});
      g = std::hypot(g, double{args.gradients[i]} * args.scalars->clip_coefficient);
    }
    if (w == 0 || g == 0) return 1;
    return d_.trust_coefficient * w / (g + double{d_.decay_of(segment)} * w + double{d_.epsilon});
  }

  void sgd(const Arenas& args, std::size_t i, double gradient, double decay, double ratio, double rate) const {
    const double w = args.parameters[i];
    gradient = ratio * (gradient + decay * w);
    if (d_.momentum != 0.0f) {
      const double velocity = double{d_.momentum} * args.state[i] + gradient;
      args.state[i] = static_cast<float>(velocity);
      gradient = d_.nesterov ? gradient + double{d_.momentum} * velocity : velocity;
    }
    args.parameters[i] = static_cast<float>(w - rate * gradient);
  }

  void adamw(const Arenas& args, std::size_t i, double gradient, double decay, double rate) const {
    const StepScalars& step = *args.scalars;
    float& m_stored = args.state[i];
    float& v_stored = args.state[d_.n_elements + i];
    const double m = double{d_.beta1} * m_stored + (1.0 - double{d_.beta1}) * gradient;
    const double v = double{d_.beta2} * v_stored + (1.0 - double{d_.beta2}) * gradient * gradient;
    m_stored = static_cast<float>(m);
    v_stored = static_cast<float>(v);
    const double w = args.parameters[i] * (1.0 - rate * decay);
    args.parameters[i] = static_cast<float>(w - rate * m * step.adam_correction1 /
                                                    (std::sqrt(v * step.adam_correction2) + double{d_.epsilon}));
  }

  OptimizerDescription d_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerDescription& description, const Context&) {
  return std::make_unique<ReferenceOptimizer>(description);
}

}  // namespace lockstep::reference
