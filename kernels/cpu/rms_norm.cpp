// RMS norm (lockstep/ops/rms_norm.h). Forward reads each row twice, the second time from the cache: once for s and its
// sum of squares, once for y. `saved`: 1 / rms of each row. Backward also reads each row twice and adds
// dy * s_hat into a row of the workspace that belongs to the row's block; these are then added up in their order.
// Blocks depend on the number of rows alone, so the sums have the same bits on any number of threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/ops/rms_norm.h"

#define LOCKSTEP_KERNELS "kernels/cpu/rms_norm_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

class CpuRmsNorm final : public CpuOp<RmsNormDescription> {
 public:
  CpuRmsNorm(const RmsNormDescription& d, const CpuContext& context)
      : PlannedOp(d, context),
        n_blocks_(std::min<std::int64_t>(kMaxBlocks, (d.rows + kMinRows - 1) / kMinRows)),
        parts_(part_count(context, 3 * d.rows * d.width * static_cast<std::int64_t>(size_bytes(d.dtype)))) {}

  OpMemoryRequirements memory_requirements() const override {
    if (d_.inference) return {};
    return {.backward_workspace_bytes = static_cast<std::size_t>(n_blocks_ * d_.width) * sizeof(float),
            .saved_bytes = static_cast<std::size_t>(d_.rows) * sizeof(float)};
  }
  std::string describe() const override {
    return fmt::format("own kernels, one pass forward and one backward{}",
                       d_.residual ? "; sum of the residual stream fused" : "");
  }

  void run_forward(const Forward& args, const OpMemory& memory, Stream&) override {
    float* const saved = d_.inference ? nullptr : static_cast<float*>(memory.saved);
    with_elements(d_.dtype, [&]<typename E>(E) {
      run_ranges(parts_, d_.rows, [&](Range rows) { LOCKSTEP_DISPATCH(rms_norm_forward<E>)(d_, args, saved, rows); });
    });
  }

  void run_backward(const Backward& args, const OpMemory& memory, Stream&) override {
    require(!d_.inference, ErrorCode::internal, "an RMS norm was planned for inference, and backward was called");
    const bool wants_dweight = args.dweight_mode != GradientMode::skip;
    auto* const partial = static_cast<float*>(memory.workspace);
    with_elements(d_.dtype, [&]<typename E>(E) {
      run_ranges(parts_, n_blocks_, [&](Range blocks) {
        for (std::int64_t block = blocks.begin; block < blocks.end; ++block) {
          const Range rows = part_of(d_.rows, static_cast<int>(block), static_cast<int>(n_blocks_));
          float* const dweight = wants_dweight ? partial + block * d_.width : nullptr;
          LOCKSTEP_DISPATCH(rms_norm_backward<E>)(d_, args, static_cast<const float*>(memory.saved), rows, dweight);
        }
      });
    });
    if (!wants_dweight) return;
    for (std::int64_t c = 0; c < d_.width; ++c) {
      double sum = args.dweight_mode == GradientMode::accumulate ? args.dweight[c] : 0.0f;
      for (std::int64_t block = 0; block < n_blocks_; ++block) sum += double{partial[block * d_.width + c]};
      args.dweight[c] = static_cast<float>(sum);
    }
  }

 private:
  static constexpr std::int64_t kMinRows = 16, kMaxBlocks = 64;

  std::int64_t n_blocks_;  // blocks of rows; each has a partial sum of dweight
  int parts_;
};

}  // namespace

std::unique_ptr<RmsNorm> make_rms_norm(const RmsNormDescription& d, const CpuContext& context) {
  require(d.rows > 0 && d.width > 0, ErrorCode::op_description,
          "an RMS norm of {} rows of {} elements: both must be positive", d.rows, d.width);
  require_float_or_bf16(d.dtype, "an RMS norm");
  return std::make_unique<CpuRmsNorm>(d, context);
}

}  // namespace lockstep::cpu
