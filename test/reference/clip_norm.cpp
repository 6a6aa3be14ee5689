// The global norm of the gradients, and the decision whether to apply a step. Formula: lockstep/ops/clip_norm.h.
#include <algorithm>
#include <cmath>

#include "lockstep/ops/clip_norm.h"
#include "test/reference/ops.h"

namespace lockstep::reference {
namespace {

class ReferenceClipNorm final : public ClipNorm {
 public:
  explicit ReferenceClipNorm(const ClipNormDescription& d) : d_(d) {}
  std::string describe() const override { return "reference: all fused"; }
  void run_sum_tiles(const SumTiles& args, const OpMemory&, Stream&) override {
    const ElementRange& range = args.range;
    for (std::size_t begin = range.begin; begin < range.end(); begin += kTileElements)
      args.tile_sums[begin / kTileElements] =
          sum_of_squares(args.gradients, begin - range.begin, std::min(kTileElements, range.end() - begin));
  }
  void run_apply(const Apply& args, const OpMemory&, Stream&) override {
    double sum = 0;
    for (std::size_t i = 0; i < d_.n_tiles(); ++i) sum += args.tile_sums[i];
    const double scale = args.loss_scale ? args.loss_scale->scale : 1.0f;
    const double correction = args.scalars->nominal_count / args.sums->weight;
    const bool are_finite = std::isfinite(sum);
    *args.norm = std::sqrt(sum) / scale * correction;
    const double coefficient = d_.max_norm > 0 ? std::min(1.0, d_.max_norm / (*args.norm + 1e-6)) : 1.0;
    args.scalars->clip_coefficient = static_cast<float>(coefficient * correction / scale);
    const double loss = args.sums->loss / args.sums->weight;
    const bool is_finite = std::isfinite(*args.norm) && std::isfinite(loss);
    args.scalars->is_applied = is_finite && !(loss > args.scalars->loss_limit) ? 1 : 0;
    if (args.loss_scale) change(*args.loss_scale, are_finite);
  }

 private:
  static double sum_of_squares(const TypedData<const void>& x, std::size_t begin, std::size_t n) {
    double sum = 0;
    for (std::size_t i = begin; i < begin + n; ++i) sum += double{x[i]} * x[i];
    return sum;
  }

  /// torch.amp.GradScaler.update, with bounds on the scale.
  void change(LossScale& loss_scale, bool is_finite) const {
    const LossScaling& s = d_.loss_scaling;
    if (s.growth_steps == 0) return;
    loss_scale.good_steps = is_finite ? loss_scale.good_steps + 1 : 0;
    if (!is_finite) loss_scale.scale = std::max(s.min_scale, loss_scale.scale * s.backoff_factor);
    if (loss_scale.good_steps < s.growth_steps) return;
    loss_scale = {.scale = std::min(s.max_scale, loss_scale.scale * s.growth_factor), .good_steps = 0};
  }

  ClipNormDescription d_;
};

}  // namespace

std::unique_ptr<ClipNorm> make_clip_norm(const ClipNormDescription& description, const Context&) {
  return std::make_unique<ReferenceClipNorm>(description);
}

}  // namespace lockstep::reference
