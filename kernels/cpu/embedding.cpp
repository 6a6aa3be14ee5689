// Embedding (lockstep/ops/embedding.h). Backward sorts pairs of id and position, and each thread then sums the runs of
// one id that begin in its part of the sorted list. A run is summed in registers, column by column, and stored once.
#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/cpu/base/blocked_layout.h"
#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/ops/embedding.h"

namespace lockstep::cpu {

/// An id in the upper half, and a position in the lower half: sorted by id, then by position. A negative id becomes a
/// large number.
using IdAndPosition = std::uint64_t;
constexpr std::int64_t id_of(IdAndPosition entry) { return static_cast<std::int64_t>(entry >> 32); }
constexpr std::int64_t position_of(IdAndPosition entry) { return static_cast<std::int64_t>(entry & 0xffffffffu); }

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/embedding_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

class CpuEmbedding final : public CpuOp<EmbeddingDescription> {
 public:
  CpuEmbedding(const EmbeddingDescription& d, const CpuContext& context)
      : PlannedOp(d, context),
        parts_(part_count(context, 2 * d.rows * d.width * static_cast<std::int64_t>(size_bytes(d.dtype)))),
        parts_of_weight_(part_count(context, static_cast<std::int64_t>(weight_bytes()))),
        layout_(canonical_layout(d.weight_layout, {d.vocabulary, d.width})) {}

  OpMemoryRequirements memory_requirements() const override {
    if (d_.inference) return {};
    return {.backward_workspace_bytes = static_cast<std::size_t>(d_.rows) * sizeof(IdAndPosition)};
  }
  std::string describe() const override { return "own kernels; the gradient is summed per id, sorted by id"; }
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return layout_; }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    with_elements(d_.dtype, [&]<typename E>(E) {
      run_ranges(parts_, d_.rows, [&](Range rows) { LOCKSTEP_DISPATCH(take_rows<E>)(d_, args, rows); });
    });
  }

  void run_backward(const Backward& args, const OpMemory& memory, Stream&) override {
    require(!d_.inference, ErrorCode::internal, "an embedding was planned for inference, and backward was called");
    if (args.dweight_mode == GradientMode::skip) return;
    auto* const sorted = static_cast<IdAndPosition*>(memory.workspace);
    for (std::int64_t row = 0; row < d_.rows; ++row)
      sorted[row] = (IdAndPosition{static_cast<std::uint32_t>(args.ids[row])} << 32) | static_cast<std::uint32_t>(row);
    std::sort(sorted, sorted + d_.rows);
    const bool accumulate = args.dweight_mode == GradientMode::accumulate;
    const std::size_t row_bytes = static_cast<std::size_t>(d_.width) * size_bytes(d_.gradient_dtype);
    if (!accumulate)
      run_ranges(parts_of_weight_, d_.vocabulary, [&](Range ids) {
        std::memset(static_cast<std::byte*>(args.dweight) + static_cast<std::size_t>(ids.begin) * row_bytes, 0,
                    static_cast<std::size_t>(ids.end - ids.begin) * row_bytes);
      });
    with_elements(d_.dtype, [&]<typename E>(E) {
      with_elements(d_.gradient_dtype, [&]<typename G>(G) {
        run_ranges(parts_, d_.rows, [&](Range range) {
          LOCKSTEP_DISPATCH(embedding_gradient<E, G>)(d_, args, sorted, range);
        });
      });
    });
  }

 private:
  std::size_t weight_bytes() const { return static_cast<std::size_t>(d_.vocabulary * d_.width) * sizeof(float); }

  int parts_, parts_of_weight_;
  std::shared_ptr<const ParameterLayout> layout_;
};

}  // namespace

std::unique_ptr<Embedding> make_embedding(const EmbeddingDescription& d, const CpuContext& context) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  require(
      d.rows > 0 && d.vocabulary > 0 && d.width > 0 && d.rows < kLimit && d.vocabulary < kLimit,
      ErrorCode::op_description,
      "an embedding of {} ids out of {} in rows of {} elements: each must be positive, and the first two below 2^31",
      d.rows, d.vocabulary, d.width);
  require_float_or_bf16(d.dtype, "an embedding");
  return std::make_unique<CpuEmbedding>(d, context);
}

}  // namespace lockstep::cpu
