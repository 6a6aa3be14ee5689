// Global norm of the gradients and the clipping coefficient min(1, max_norm / (norm + 1e-6)), as in PyTorch.
// The arena is summed in fp64, in tiles of kTileElements, in a fixed order. The padding between gradients is zero. If
// max_norm is 0, the coefficient is 1.
//
// The sums of tiles are computed before apply(), range by range: either as soon as the gradients of a range are summed
// over ranks, or on different ranks, which then exchange the sums. The norm has the same bits either way. apply()
// decides on the device whether the step is applied: norm and mean loss must be finite, and the loss at most the limit.
//
// The loss is a mean over the samples that the step counts on all ranks, weighted by their classes. The sum of the
// weights is known only now, so the gradients have been computed with the weight 1 / nominal_count. The norm and the
// coefficient are multiplied by nominal_count / LossSums::weight, which is exactly 1 if every sample is counted and
// classes have no weights. A step whose weight is 0 has no mean loss and is not applied.
//
// With a loss scale, the norm is that of gradients / scale. The coefficient is divided by the scale, so that gradients
// times the coefficient are the same as without a loss scale. The scale is then updated for the next step
// (loss_scale.h).
#pragma once

#include <cmath>

#include "lockstep/dtype.h"
#include "lockstep/host_device.h"
#include "lockstep/loss_scale.h"
#include "lockstep/op.h"
#include "lockstep/ops/parameter_segment.h"
#include "lockstep/ops/step_scalars.h"

namespace lockstep {

struct ClipNormDescription {
  using Op = class ClipNorm;
  static constexpr std::string_view kName = "clip_norm";

  std::size_t n_elements = 0;  // of the arena
  float max_norm = 0;
  LossScaling loss_scaling{};  // for Apply::loss_scale

  std::size_t n_tiles() const { return n_tiles_of(n_elements); }
};

class ClipNorm : public Op {
 public:
  struct SumTiles {
    TypedData<const void> gradients{};  // fp32 or bf16: those of `range`
    double* tile_sums = nullptr;        // (n_tiles); those of the range are written
    ElementRange range{};               // of the arena. It begins with a tile, and ends with one or with the arena
  };
  void sum_tiles(const SumTiles& args, Stream& stream) {
    submit("clip_norm.sum_tiles", &ClipNorm::run_sum_tiles, args, OpMemory{}, stream);
  }

  struct Apply {
    const double* tile_sums = nullptr;  // (n_tiles)
    const LossSums* sums = nullptr;     // of the step
    StepScalars* scalars = nullptr;     // clip_coefficient and is_applied are written
    LossScale* loss_scale = nullptr;    // in: the scale of these gradients; out: of the next step; null: 1
    double* norm = nullptr;             // written
  };
  void apply(const Apply& args, Stream& stream) {
    submit("clip_norm.apply", &ClipNorm::run_apply, args, OpMemory{}, stream);
  }

 private:
  virtual void run_sum_tiles(const SumTiles& args, const OpMemory& memory, Stream& stream) = 0;
  virtual void run_apply(const Apply& args, const OpMemory& memory, Stream& stream) = 0;
};

/// What apply() does with the sum of all tiles.
LOCKSTEP_HOST_DEVICE inline void finish_norm(double total, double max_norm, const LossScaling& loss_scaling,
                                             const ClipNorm::Apply& args) {
  const double scale = args.loss_scale ? args.loss_scale->scale : 1.0f;
  const double correction = args.scalars->nominal_count / args.sums->weight;
  const double unscaled_norm = std::sqrt(total) / scale;
  const double norm = unscaled_norm * correction;
  *args.norm = norm;
  double coefficient = 1;
  if (max_norm > 0) {
    coefficient = max_norm / (norm + 1e-6);
    if (coefficient > 1) coefficient = 1;
  }
  args.scalars->clip_coefficient = static_cast<float>(coefficient * correction / scale);
  const double loss = args.sums->loss / args.sums->weight;
  const bool is_applied = std::isfinite(norm) && std::isfinite(loss) && loss <= double{args.scalars->loss_limit};
  args.scalars->is_applied = is_applied ? 1 : 0;
  if (args.loss_scale) *args.loss_scale = next_loss_scale(*args.loss_scale, loss_scaling, std::isfinite(unscaled_norm));
}

}  // namespace lockstep
