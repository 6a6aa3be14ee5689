// Rotary position embedding (lockstep/ops/rotary.h): one pass over memory, head by head in fp32, with the norm of a
// head while it is in the cache; backward computes the norm again. Each block of rows has partial sums of the gradients
// of the norms' weights, which are then added up in their order. Blocks depend on the number of rows alone, so the sums
// have the same bits on any number of threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/ops/rotary.h"

namespace lockstep::cpu {

/// A head in fp32: the first numbers of its pairs, and their second numbers.
struct RotaryHead {
  static constexpr std::int64_t kMaxPairs = RotaryDescription::kMaxHeadDim / 2;
  alignas(64) float first[kMaxPairs];
  alignas(64) float second[kMaxPairs];
};

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/rotary_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

class CpuRotary final : public CpuOp<RotaryDescription> {
 public:
  CpuRotary(const RotaryDescription& d, const CpuContext& context)
      : PlannedOp(d, context),
        n_blocks_(std::min<std::int64_t>(kMaxBlocks, (d.rows + kMinRows - 1) / kMinRows)),
        parts_(std::min(part_count(context, 2 * d.rows * d.row_size() * static_cast<std::int64_t>(size_bytes(d.dtype))),
                        static_cast<int>(n_blocks_))) {}

  OpMemoryRequirements memory_requirements() const override {
    if (d_.inference || !d_.norm) return {};
    return {.backward_workspace_bytes = static_cast<std::size_t>(n_blocks_ * 2 * d_.head_dim) * sizeof(float)};
  }
  std::string describe() const override {
    return fmt::format("{} pairs: own kernel, one pass{}", name(d_.pairs), d_.norm ? "; norms fused" : "");
  }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    run({.x = args.x,
         .positions = args.positions,
         .table = args.table,
         .q_norm = args.q_norm,
         .k_norm = args.k_norm,
         .dx = args.y},
        nullptr);
  }

  void run_backward(const Backward& args, const OpMemory& memory, Stream&) override {
    require(!d_.inference, ErrorCode::internal,
            "a rotary embedding was planned for inference, and backward was called");
    auto* const partial = d_.norm ? static_cast<float*>(memory.workspace) : nullptr;
    if (!d_.norm && args.dx_mode == GradientMode::skip) return;
    run(args, partial);
    if (!d_.norm) return;
    add_partial(partial, args.dq_norm, args.dq_norm_mode);
    add_partial(partial + d_.head_dim, args.dk_norm, args.dk_norm_mode);
  }

 private:
  static constexpr std::int64_t kMinRows = 16, kMaxBlocks = 64;

  /// Without `dy`, this is forward, and dx is y. `partial` is (n_blocks, 2, head_dim), or null if it is not needed.
  void run(const Backward& args, float* partial) const {
    with_elements(d_.dtype, [&]<typename E>(E) {
      run_ranges(parts_, n_blocks_, [&](Range blocks) {
        for (std::int64_t block = blocks.begin; block < blocks.end; ++block) {
          const Range rows = part_of(d_.rows, static_cast<int>(block), static_cast<int>(n_blocks_));
          LOCKSTEP_DISPATCH(rotary_pass<E>)(d_, args, rows, partial ? partial + block * 2 * d_.head_dim : nullptr);
        }
      });
    });
  }

  void add_partial(const float* partial, float* target, GradientMode mode) const {
    if (mode == GradientMode::skip) return;
    for (std::int64_t i = 0; i < d_.head_dim; ++i) {
      double sum = mode == GradientMode::accumulate ? target[i] : 0.0f;
      for (std::int64_t block = 0; block < n_blocks_; ++block) sum += double{partial[block * 2 * d_.head_dim + i]};
      target[i] = static_cast<float>(sum);
    }
  }

  std::int64_t n_blocks_;  // blocks of rows
  int parts_;
};

}  // namespace

std::unique_ptr<Rotary> make_rotary(const RotaryDescription& d, const CpuContext& context) {
  require_float_or_bf16(d.dtype, "a rotary embedding");
  return std::make_unique<CpuRotary>(d, context);
}

}  // namespace lockstep::cpu
