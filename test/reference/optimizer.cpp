#include "test/reference/optimizer.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "lockstep/bf16.h"

namespace lockstep::reference {
namespace {

class ReferenceOptimizer final : public Optimizer {
 public:
  explicit ReferenceOptimizer(const OptimizerDescription& d) : d_(d) {}
  OpNeeds needs() const override { return {}; }
  std::string describe() const override { return "reference: all fused"; }

  void apply(const Apply& args, const OpMemory&, Stream&) override {
    if (args.scalars->is_applied == 0) return;
    for (const ParameterSegment& segment : d_.segments) {
      const double ratio = d_.kind == Kind::lars && segment.decay ? trust_ratio(args, segment) : 1.0;
      for (std::size_t i = segment.begin; i < segment.begin + segment.n_elements; ++i) {
        const double decay = segment.decay ? d_.weight_decay : 0.0;
        const double gradient = double{args.gradients[i]} * args.scalars->clip_coefficient;
        if (d_.kind == Kind::adamw)
          adamw(args, i, gradient, decay);
        else
          sgd(args, i, gradient, decay, ratio);
      }
    }
  }

 private:
  using Kind = OptimizerDescription::Kind;

  double trust_ratio(const Apply& args, const ParameterSegment& segment) const {
    double w = 0, g = 0;
    for (std::size_t i = segment.begin; i < segment.begin + segment.n_elements; ++i) {
      w = std::hypot(w, double{args.parameters[i]});
      g = std::hypot(g, double{args.gradients[i]} * args.scalars->clip_coefficient);
    }
    if (w == 0 || g == 0) return 1;
    return d_.trust_coefficient * w / (g + double{d_.weight_decay} * w + double{d_.epsilon});
  }

  void sgd(const Apply& args, std::size_t i, double gradient, double decay, double ratio) const {
    const double w = args.parameters[i];
    gradient = ratio * (gradient + decay * w);
    if (d_.momentum != 0.0f) {
      const double velocity = double{d_.momentum} * args.state[i] + gradient;
      args.state[i] = static_cast<float>(velocity);
      gradient = d_.nesterov ? gradient + double{d_.momentum} * velocity : velocity;
    }
    args.parameters[i] = static_cast<float>(w - args.scalars->learning_rate * gradient);
  }

  void adamw(const Apply& args, std::size_t i, double gradient, double decay) const {
    const StepScalars& step = *args.scalars;
    float& m_stored = args.state[i];
    float& v_stored = args.state[d_.n_elements + i];
    const double m = double{d_.beta1} * m_stored + (1.0 - double{d_.beta1}) * gradient;
    const double v = double{d_.beta2} * v_stored + (1.0 - double{d_.beta2}) * gradient * gradient;
    m_stored = static_cast<float>(m);
    v_stored = static_cast<float>(v);
    const double w = args.parameters[i] * (1.0 - double{step.learning_rate} * decay);
    args.parameters[i] = static_cast<float>(w - step.learning_rate * m * step.adam_correction1 /
                                                    (std::sqrt(v * step.adam_correction2) + double{d_.epsilon}));
  }

  OptimizerDescription d_;
};

class ReferenceClipNorm final : public ClipNorm {
 public:
  explicit ReferenceClipNorm(const ClipNormDescription& d) : d_(d) {}
  OpNeeds needs() const override { return {}; }
  std::string describe() const override { return "reference: all fused"; }
  void apply(const Apply& args, const OpMemory&, Stream&) override {
    double sum = 0;
    for (const ParameterSegment& segment : d_.segments)
      for (std::size_t i = segment.begin; i < segment.begin + segment.n_elements; ++i)
        sum += double{args.gradients[i]} * args.gradients[i];
    const double scale = args.loss_scale ? args.loss_scale->scale : 1.0f;
    const double correction = args.scalars->nominal_count / args.sums->count;
    const bool are_finite = std::isfinite(sum);
    *args.norm = std::sqrt(sum) / scale * correction;
    const double coefficient = d_.max_norm > 0 ? std::min(1.0, d_.max_norm / (*args.norm + 1e-6)) : 1.0;
    args.scalars->clip_coefficient = static_cast<float>(coefficient * correction / scale);
    const double loss = args.sums->loss / args.sums->count;
    const bool is_finite = std::isfinite(*args.norm) && std::isfinite(loss);
    args.scalars->is_applied = is_finite && !(loss > args.scalars->loss_limit) ? 1 : 0;
    if (args.loss_scale) change(*args.loss_scale, are_finite);
  }

 private:
  /// torch.amp.GradScaler.update, with bounds.
  void change(LossScale& loss_scale, bool is_finite) const {
    const LossScaling& s = d_.loss_scaling;
    if (s.growth_steps == 0) return;
    loss_scale.good_steps = is_finite ? loss_scale.good_steps + 1 : 0;
    if (!is_finite) loss_scale.scale = std::max(s.least, loss_scale.scale * s.backoff);
    if (loss_scale.good_steps < s.growth_steps) return;
    loss_scale = {.scale = std::min(s.greatest, loss_scale.scale * s.growth), .good_steps = 0};
  }

  ClipNormDescription d_;
};

/// In the type of the sum and not in double: the order of rounded additions is what it is for.
template <typename T>
class ReferenceOrderedSum final : public OrderedSum {
 public:
  OpNeeds needs() const override { return {}; }
  std::string describe() const override { return "reference"; }

  void apply(const Apply& args, const OpMemory&, Stream&) override {
    for (std::size_t i = args.begin; i < args.begin + args.n_elements; ++i) {
      T total = static_cast<const T*>(args.value)[i];
      for (std::size_t s = args.open.size(); s-- > 0;) total = static_cast<const T*>(args.open[s])[i] + total;
      static_cast<T*>(args.target)[i] = total;
    }
  }
};

class ReferenceCast final : public Cast {
 public:
  explicit ReferenceCast(const CastDescription& d) : d_(d) {}
  OpNeeds needs() const override { return {}; }
  std::string describe() const override { return "reference"; }

  void apply(const Apply& args, const OpMemory&, Stream&) override {
    for (std::size_t i = 0; i < args.n_elements; ++i) {
      if (d_.to == DType::bf16)
        static_cast<Bf16*>(args.target)[i] = to_bf16(static_cast<const float*>(args.source)[i]);
      else
        static_cast<float*>(args.target)[i] = to_float(static_cast<const Bf16*>(args.source)[i]);
    }
  }

 private:
  CastDescription d_;
};

class ReferenceMovingAverage final : public MovingAverage {
 public:
  explicit ReferenceMovingAverage(const MovingAverageDescription& d) : d_(d) {}
  OpNeeds needs() const override { return {}; }
  std::string describe() const override { return "reference: all fused"; }
  void apply(const Apply& args, const OpMemory&, Stream&) override {
    if (args.scalars->is_applied == 0) return;
    for (std::size_t i = 0; i < d_.n_elements; ++i) {
      const double running = args.running[i];
      args.running[i] = static_cast<float>(running + double{d_.momentum} * (args.batch[i] - running));
    }
  }

 private:
  MovingAverageDescription d_;
};

class ReferenceHash final : public Hash {
 public:
  explicit ReferenceHash(const HashDescription& d) : d_(d) {}
  OpNeeds needs() const override { return {}; }
  std::string describe() const override { return "reference: all fused"; }
  void apply(const Apply& args, const OpMemory&, Stream&) override {
    *args.hash = XXH3_64bits(args.data, d_.size_bytes);
  }

 private:
  HashDescription d_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerDescription& description) {
  return std::make_unique<ReferenceOptimizer>(description);
}
std::unique_ptr<ClipNorm> make_clip_norm(const ClipNormDescription& description) {
  return std::make_unique<ReferenceClipNorm>(description);
}
std::unique_ptr<OrderedSum> make_ordered_sum(const OrderedSumDescription& d) {
  if (d.dtype == DType::fp64) return std::make_unique<ReferenceOrderedSum<double>>();
  return std::make_unique<ReferenceOrderedSum<float>>();
}
std::unique_ptr<Cast> make_cast(const CastDescription& description) {
  return std::make_unique<ReferenceCast>(description);
}
std::unique_ptr<MovingAverage> make_moving_average(const MovingAverageDescription& description) {
  return std::make_unique<ReferenceMovingAverage>(description);
}
std::unique_ptr<Hash> make_hash(const HashDescription& description) {
  return std::make_unique<ReferenceHash>(description);
}

}  // namespace lockstep::reference
