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

namespace lockstep::cpu {

template <typename E>
struct RmsNormForwardTask {
  std::int64_t width = 0;
  float epsilon = 0;
  const E* x = nullptr;
  const E* residual = nullptr;  // null if there is no residual; s is then x
  const float* weight = nullptr;
  E* s = nullptr;
  E* y = nullptr;
  float* inverse_rms = nullptr;  // (rows); null if not kept
};

template <typename E>
struct RmsNormBackwardTask {
  std::int64_t width = 0;
  const E* dy = nullptr;
  const E* s = nullptr;
  const float* weight = nullptr;
  const E* added = nullptr;            // null: none
  const float* inverse_rms = nullptr;  // (rows)
  E* ds = nullptr;                     // null if not computed
  bool accumulate = false;
};

}  // namespace lockstep::cpu

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
    const std::size_t of_factors = d_.weight_offset != 0 ? row_bytes() : 0;
    if (d_.inference) return {.forward_workspace_bytes = of_factors};
    return {.forward_workspace_bytes = of_factors,
            .backward_workspace_bytes = static_cast<std::size_t>(n_blocks_) * row_bytes() + of_factors,
            .saved_bytes = static_cast<std::size_t>(d_.rows) * sizeof(float)};
  }
  std::string describe() const override {
    return fmt::format("own kernels, one pass forward and one backward{}",
                       d_.residual ? "; sum of the residual stream fused" : "");
  }

  void run_forward(const Forward& args, const OpMemory& memory, Stream&) override {
    const float* const weight = factors(args.weight, static_cast<float*>(memory.workspace));
    with_elements(d_.dtype, [&]<typename E>(E) {
      const RmsNormForwardTask<E> task{.width = d_.width,
                                       .epsilon = d_.epsilon,
                                       .x = static_cast<const E*>(args.x),
                                       .residual = d_.residual ? static_cast<const E*>(args.residual) : nullptr,
                                       .weight = weight,
                                       .s = static_cast<E*>(args.s),
                                       .y = static_cast<E*>(args.y),
                                       .inverse_rms = d_.inference ? nullptr : static_cast<float*>(memory.saved)};
      run_ranges(parts_, d_.rows, [&](Range range) { LOCKSTEP_DISPATCH(rms_norm_forward<E>)(task, range); });
    });
  }

  void run_backward(const Backward& args, const OpMemory& memory, Stream&) override {
    require(!d_.inference, ErrorCode::internal, "an RMS norm was planned for inference, and backward was called");
    const bool wants_dweight = args.dweight_mode != GradientMode::skip;
    auto* const partial = static_cast<float*>(memory.workspace);
    const float* const weight = factors(args.weight, partial + n_blocks_ * d_.width);
    with_elements(d_.dtype, [&]<typename E>(E) {
      const bool wants_ds = args.ds_mode != GradientMode::skip;
      const RmsNormBackwardTask<E> task{.width = d_.width,
                                        .dy = static_cast<const E*>(args.dy),
                                        .s = static_cast<const E*>(args.s),
                                        .weight = weight,
                                        .added = static_cast<const E*>(args.added),
                                        .inverse_rms = static_cast<const float*>(memory.saved),
                                        .ds = wants_ds ? static_cast<E*>(args.ds) : nullptr,
                                        .accumulate = args.ds_mode == GradientMode::accumulate};
      run_ranges(parts_, n_blocks_, [&](Range blocks) {
        for (std::int64_t block = blocks.begin; block < blocks.end; ++block) LOCKSTEP_DISPATCH(rms_norm_backward<E>)
        (task, part_of(d_.rows, static_cast<int>(block), static_cast<int>(n_blocks_)),
         wants_dweight ? partial + block * d_.width : nullptr);
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

  std::size_t row_bytes() const { return static_cast<std::size_t>(d_.width) * sizeof(float); }
  /// weight_offset + weight, in `memory` unless that is the weight.
  const float* factors(const float* weight, float* memory) const {
    if (d_.weight_offset == 0) return weight;
    std::transform(weight, weight + d_.width, memory, [&](float w) { return d_.weight_offset + w; });
    return memory;
  }

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
