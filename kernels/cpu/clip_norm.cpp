// The global norm of the gradients in fp64, the same bits on any number of threads, the clipping coefficient,
// and whether the step is applied.
#include <cmath>
#include <memory>

#include "kernels/cpu/base/context.h"
#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/segment_blocks.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/ops/clip_norm.h"

#define LOCKSTEP_KERNELS "kernels/cpu/clip_norm_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

class CpuClipNorm final : public ClipNorm {
 public:
  CpuClipNorm(const ClipNormDescription& d, const CpuContext& context)
      : max_norm_(d.max_norm),
        loss_scaling_(d.loss_scaling),
        blocks_(cut_into_blocks(d.segments)),
        parts_(part_count(context, static_cast<std::int64_t>(total_elements(blocks_) * sizeof(float)))) {}

  OpNeeds needs() const override {
    OpNeeds needs;
    needs.forward_workspace_bytes = blocks_.size() * sizeof(double);
    return needs;
  }
  std::string describe() const override { return "own kernel: sums of squares in fp64"; }

  void run_apply(const Apply& args, const OpMemory& memory, Stream&) override {
    double* sums = static_cast<double*>(memory.workspace);
    run_parts(parts_, [&](int part) {
      const Range range = part_of(static_cast<std::int64_t>(blocks_.size()), part, parts_);
      for (std::int64_t i = range.begin; i < range.end; ++i) {
        const ParameterSegment& block = blocks_[static_cast<std::size_t>(i)];
        sums[i] = LOCKSTEP_DISPATCH(sum_of_squares)(args.gradients + block.begin, block.n_elements);
      }
    });
    double total = 0;
    for (std::size_t i = 0; i < blocks_.size(); ++i) total += sums[i];
    const double scale = args.loss_scale ? args.loss_scale->scale : 1.0f;
    const double correction = args.scalars->nominal_count / args.sums->weight;
    const double unscaled_norm = std::sqrt(total) / scale;
    const double norm = unscaled_norm * correction;
    *args.norm = norm;
    double coefficient = 1;
    if (max_norm_ > 0) {
      coefficient = max_norm_ / (norm + 1e-6);
      if (coefficient > 1) coefficient = 1;
    }
    args.scalars->clip_coefficient = static_cast<float>(coefficient * correction / scale);
    const double loss = args.sums->loss / args.sums->weight;
    args.scalars->is_applied = std::isfinite(norm) && std::isfinite(loss) && loss <= args.scalars->loss_limit ? 1 : 0;
    if (args.loss_scale)
      *args.loss_scale = next_loss_scale(*args.loss_scale, loss_scaling_, std::isfinite(unscaled_norm));
  }

 private:
  double max_norm_;
  LossScaling loss_scaling_;
  std::vector<ParameterSegment> blocks_;
  int parts_;
};

}  // namespace

std::unique_ptr<ClipNorm> make_clip_norm(const ClipNormDescription& d, const CpuContext& context) {
  return std::make_unique<CpuClipNorm>(d, context);
}

}  // namespace lockstep::cpu
