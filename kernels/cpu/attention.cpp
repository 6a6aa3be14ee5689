// Attention (lockstep/ops/attention.h) in tiles that fit into the caches. Threads take units of queries one by one
// (attention.h). Each computes its tiles of scores from keys that an earlier pass has packed for all units. In forward
// a unit keeps the running maximum and sum of its softmax; `saved` is their logarithm. In backward it recomputes the
// probabilities, owns its dq, and adds to dk and dv, which are fp32 until all units are done. Units add to a block of
// keys in their order, so the bits do not depend on the number of threads.
// Blocks of keys that no query of a unit may attend to, because they are later or belong to earlier documents, are
// skipped. Pairs are worked on in groups whose keys fit into a limited workspace.
// In bf16, products read pairs of bf16 numbers where the processor has AMX or vector instructions for them, and p and
// dscore are rounded to bf16; otherwise tiles are fp32.
#include "kernels/cpu/attention.h"

#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>

#include "kernels/cpu/base/amx.h"
#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/workspace.h"

#define LOCKSTEP_KERNELS "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/base/each_isa.h"

#ifdef __x86_64__
#include "kernels/cpu/base/amx_tiles.h"

// The kernels are compiled once more for AVX-512 with bf16, in namespace avx512_bf16, and for AMX, in namespace
// avx512_amx.
#define LOCKSTEP_LANES 16
#define LOCKSTEP_BF16_PRODUCTS
#pragma GCC push_options
#pragma GCC target( \
    "avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt,prefer-vector-width=512")
#define LOCKSTEP_ISA avx512_bf16
#include "kernels/cpu/base/vectors.h"
// vectors.h must come first.
#include "kernels/cpu/attention_kernels.h"
#undef LOCKSTEP_ISA
#pragma GCC target("amx-tile,amx-bf16")
#define LOCKSTEP_ISA avx512_amx
#define LOCKSTEP_AMX_PRODUCTS
#include "kernels/cpu/base/vectors.h"
// vectors.h must come first.
#include "kernels/cpu/attention_kernels.h"
#undef LOCKSTEP_AMX_PRODUCTS
#undef LOCKSTEP_ISA
#pragma GCC pop_options
#undef LOCKSTEP_BF16_PRODUCTS
#undef LOCKSTEP_LANES
#endif

namespace lockstep::cpu {
namespace {

/// How products are computed: from fp32 numbers with vector instructions, or from pairs of bf16 numbers with vector
/// instructions or AMX.
enum class Products : std::uint8_t { floats, pairs, amx };

Products products_of(DType dtype) {
  if (dtype != DType::bf16) return Products::floats;
  if (amx_is_usable()) return Products::amx;
  return bf16_products_are_usable() ? Products::pairs : Products::floats;
}

/// Calls the version of the function that was compiled for this processor, the Types in scope and products_.
#ifdef __x86_64__
#define LOCKSTEP_ATTENTION(function)                                                                                \
  [&](auto&&... arguments) {                                                                                        \
    if constexpr (std::is_same_v<typename Types::Number, Bf16Pair>)                                                 \
      (products_ == Products::amx ? avx512_amx::function<Types>                                                     \
                                  : avx512_bf16::function<Types>)(std::forward<decltype(arguments)>(arguments)...); \
    else                                                                                                            \
      LOCKSTEP_DISPATCH(function<Types>)(std::forward<decltype(arguments)>(arguments)...);                          \
  }
#else
#define LOCKSTEP_ATTENTION(function) LOCKSTEP_DISPATCH(function<Types>)
#endif

class CpuAttention final : public CpuOp<AttentionDescription> {
 public:
  CpuAttention(const AttentionDescription& d, const CpuContext& context);

  OpMemoryRequirements memory_requirements() const override {
    return {
        .forward_workspace_bytes = forward_.plan.size_bytes(),
        .backward_workspace_bytes = backward_.plan.size_bytes(),
        .saved_bytes = d_.inference ? 0 : static_cast<std::size_t>(d_.batch * d_.heads * d_.sequence) * sizeof(float)};
  }
  std::string describe() const override {
    return fmt::format("{}: own kernels, in tiles{}", text(d_),
                       products_ == Products::amx     ? " of bf16, with AMX"
                       : products_ == Products::pairs ? " of bf16"
                       : d_.dtype == DType::bf16      ? " of fp32"
                                                      : "");
  }

  void run_forward(const Forward& args, const OpMemory& memory, Stream&) override {
    with_types([&]<typename Types>(Types) { forward<Types>(args, memory); });
  }
  void run_backward(const Backward& args, const OpMemory& memory, Stream&) override {
    require(!d_.inference, ErrorCode::internal, "{} was planned for inference, and backward was called", text(d_));
    with_types([&]<typename Types>(Types) { backward<Types>(args, memory); });
  }

 private:
  /// Forward or backward: its tiles, the layout of its workspace, and the work for a group of pairs.
  struct Direction {
    AttentionTiling tiling;
    bool is_backward = false;
    WorkspacePlan plan{};
    std::int64_t n_pairs = 0;                                  // in a group
    int parts = 1;                                             // threads
    std::size_t keys = 0, keys_bytes = 0;                      // keys_bytes: of each pair
    std::size_t progress = 0, scratch = 0, scratch_bytes = 0;  // scratch_bytes: of each thread
  };

  template <typename F>
  void with_types(const F& f) const {
    if (d_.dtype == DType::fp32) return f(AttentionTypes<float, float>{});
#ifdef __x86_64__
    if (products_ != Products::floats) return f(AttentionTypes<Bf16, Bf16Pair>{});
#endif
    f(AttentionTypes<Bf16, float>{});
  }
  AttentionTiling tiling(std::int64_t rows) const {
    return products_ == Products::amx ? AttentionTiling(d_, kAmxRows, AttentionTiling::kAmxPadding)
                                      : AttentionTiling(d_, rows, {});
  }
  void plan(Direction& direction, const CpuContext& context);
  template <typename Types>
  void forward(const Forward& args, const OpMemory& memory);
  template <typename Types>
  void backward(const Backward& args, const OpMemory& memory);
  template <typename N>
  static AttentionKeys<N> keys_of(const Direction& direction, std::int64_t i, void* workspace);
  template <typename Types, typename Unit>
  void run_groups(const Direction& direction, const AttentionTask<typename Types::Element>& task, void* workspace,
                  const Unit& unit);

  // Rows of a unit: a tile of scores and its factors fit into the L1 cache of 32 KB or more. For AMX, the rows are two
  // strips, which fit into the L2 cache.
  static constexpr std::int64_t kForwardRows = 48, kBackwardRows = 64, kAmxRows = 64;
  static constexpr std::size_t kGroupBytes = std::size_t{16} << 20;  // of packed keys; more only for a single pair
  static constexpr double kProductsPerPart = 2e6;

  Products products_;
  Direction forward_, backward_;
};

CpuAttention::CpuAttention(const AttentionDescription& d, const CpuContext& context)
    : PlannedOp(d, context),
      products_(products_of(d.dtype)),
      forward_{.tiling = tiling(kForwardRows)},
      backward_{.tiling = tiling(kBackwardRows), .is_backward = true} {
  plan(forward_, context);
  if (!d.inference) plan(backward_, context);
}

void CpuAttention::plan(Direction& direction, const CpuContext& context) {
  const AttentionTiling& t = direction.tiling;
  const bool is_backward = direction.is_backward;
  Scratch keys, scratch;
  with_types([&]<typename Types>(Types) {
    using N = typename Types::Number;
    AttentionKeys<N>(t, is_backward, keys);
    is_backward ? static_cast<void>(BackwardScratch<N>(t, scratch)) : static_cast<void>(ForwardScratch<N>(t, scratch));
  });
  direction.keys_bytes = keys.size_bytes();
  direction.scratch_bytes = scratch.size_bytes();
  const std::int64_t all = d_.batch * d_.kv_heads;
  direction.n_pairs = std::clamp<std::int64_t>(static_cast<std::int64_t>(kGroupBytes / direction.keys_bytes), 1, all);
  // Half of the multiplications for all pairs of tokens. Starting a thread costs as much as a few million of them.
  const double products = static_cast<double>(d_.batch * d_.heads * d_.sequence) *
                          static_cast<double>(d_.sequence * d_.head_dim) * (is_backward ? 2.5 : 1);
  const std::int64_t useful =
      std::min(direction.n_pairs * t.n_units, static_cast<std::int64_t>(products / kProductsPerPart) + 1);
  direction.parts = static_cast<int>(std::min<std::int64_t>(std::max(1, context.threads), useful));

  WorkspacePlan& plan = direction.plan;
  const auto n = static_cast<std::size_t>(direction.n_pairs);
  direction.keys = plan.take(n * direction.keys_bytes);
  if (is_backward) direction.progress = plan.take(n * static_cast<std::size_t>(t.n_units) * sizeof(AttentionProgress));
  direction.scratch = plan.take(static_cast<std::size_t>(direction.parts) * direction.scratch_bytes);
}

/// The keys of pair `i` of a group.
template <typename N>
AttentionKeys<N> CpuAttention::keys_of(const Direction& direction, std::int64_t i, void* workspace) {
  Scratch from(at(workspace, direction.keys + static_cast<std::size_t>(i) * direction.keys_bytes));
  return {direction.tiling, direction.is_backward, from};
}

/// For each group of pairs: packs the keys, calls unit(pair, its number in the group, number of the unit, keys,
/// scratch) for all units, and writes the gradients of keys and values. Threads take units in the order of their
/// numbers, so a unit may wait for one with a smaller number.
template <typename Types, typename Unit>
void CpuAttention::run_groups(const Direction& direction, const AttentionTask<typename Types::Element>& task,
                              void* workspace, const Unit& unit) {
  using N = typename Types::Number;
  const AttentionTiling& t = direction.tiling;
  const std::int64_t all = d_.batch * d_.kv_heads;
  for (std::int64_t first = 0; first < all; first += direction.n_pairs) {
    const std::int64_t n = std::min(direction.n_pairs, all - first);
    const auto for_blocks = [&](const auto& work) {
      run_ranges(direction.parts, n * t.n_blocks, [&](Range range) {
        for (std::int64_t i = range.begin; i < range.end; ++i)
          work(first + i / t.n_blocks, i % t.n_blocks, keys_of<N>(direction, i / t.n_blocks, workspace));
      });
    };
    for_blocks([&](auto... args) { LOCKSTEP_ATTENTION(attention_pack)(task, args...); });
    if (direction.is_backward)
      for (std::int64_t i = 0; i < n * t.n_units; ++i)
        new (at<AttentionProgress>(workspace, direction.progress) + i) AttentionProgress(0);
    std::atomic<std::int64_t> next = 0;
    run_parts(direction.parts, [&](int part) {
      std::byte* const scratch =
          at<std::byte>(workspace, direction.scratch) + static_cast<std::size_t>(part) * direction.scratch_bytes;
      for (std::int64_t i = next++; i < n * t.n_units; i = next++)
        unit(first + i % n, i % n, i / n, keys_of<N>(direction, i % n, workspace), scratch);
    });
    if (direction.is_backward) for_blocks([&](auto... args) { LOCKSTEP_ATTENTION(attention_unpack)(task, args...); });
  }
}

template <typename Types>
void CpuAttention::forward(const Forward& args, const OpMemory& memory) {
  using E = typename Types::Element;
  const AttentionTask<E> task{.tiling = forward_.tiling,
                              .qkv = static_cast<const E*>(args.qkv),
                              .document_start = d_.documents ? args.document_start : nullptr,
                              .window = d_.window,
                              .log_sum_exp = d_.inference ? nullptr : static_cast<float*>(memory.saved),
                              .y = static_cast<E*>(args.y)};
  run_groups<Types>(forward_, task, memory.workspace,
                    [&](std::int64_t pair, std::int64_t, std::int64_t unit, const auto& keys, void* scratch) {
                      // The last units have the most keys. They are computed first, so that threads finish at about the
                      // same time.
                      const std::int64_t longest_first = forward_.tiling.n_units - 1 - unit;
                      LOCKSTEP_ATTENTION(attention_forward)(task, pair, longest_first, keys, scratch);
                    });
}

template <typename Types>
void CpuAttention::backward(const Backward& args, const OpMemory& memory) {
  using E = typename Types::Element;
  const AttentionTask<E> task{.tiling = backward_.tiling,
                              .qkv = static_cast<const E*>(args.qkv),
                              .document_start = d_.documents ? args.document_start : nullptr,
                              .window = d_.window,
                              .log_sum_exp = static_cast<float*>(memory.saved),
                              .y_of_forward = static_cast<const E*>(args.y),
                              .dy = static_cast<const E*>(args.dy),
                              .dqkv = static_cast<E*>(args.dqkv)};
  auto* const progress = at<AttentionProgress>(memory.workspace, backward_.progress);
  const std::int64_t n_units = backward_.tiling.n_units;
  run_groups<Types>(backward_, task, memory.workspace,
                    [&](std::int64_t pair, std::int64_t number, std::int64_t unit, const auto& keys, void* scratch) {
                      AttentionProgress* const own = progress + number * n_units + unit;
                      LOCKSTEP_ATTENTION(attention_backward)
                      (task, pair, unit, keys, unit == 0 ? nullptr : own - 1, *own, scratch);
                    });
}

}  // namespace

std::unique_ptr<Attention> make_attention(const AttentionDescription& d, const CpuContext& context) {
  require_float_or_bf16(d.dtype, "attention");
  return std::make_unique<CpuAttention>(d, context);
}

}  // namespace lockstep::cpu
