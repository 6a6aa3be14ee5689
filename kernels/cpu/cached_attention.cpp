// Attention over a cache (lockstep/ops/cached_attention.h). First the keys and values of all new tokens are stored.
// Then threads divide the pairs of a token and a key-value head; the query heads of a group share what is read from the
// cache. A pair goes through the keys in blocks of kCacheBlock, with a running maximum and sum of the softmax. Blocks
// begin at multiples of kCacheBlock of the sequence, so the bits do not depend on how a prompt is cut into chunks.
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/ops/cached_attention.h"
#include "lockstep/workspace.h"

namespace lockstep::cpu {

constexpr std::int64_t kCacheBlock = 64;  // keys

template <typename E>
struct CachedAttentionTask {
  std::int64_t slots = 0, capacity = 0, kv_heads = 0, group = 0, head_dim = 0, window = 0;
  float scale = 0;
  const E* qkv = nullptr;
  const std::int32_t* slot = nullptr;
  const std::int32_t* position = nullptr;
  const std::int32_t* cache_indirection = nullptr;
  E* cache = nullptr;
  E* y = nullptr;

  std::int64_t packed_width() const { return (group + 2) * kv_heads * head_dim; }
  std::int64_t values_after_keys() const { return slots * kv_heads * capacity * head_dim; }
  bool exists(std::int64_t row) const {
    return slot[row] >= 0 && slot[row] < slots && position[row] >= 0 && position[row] < capacity;
  }
  E* key(std::int64_t of_slot, std::int64_t head, std::int64_t at_position) const {
    return cache + ((of_slot * kv_heads + head) * capacity + at_position) * head_dim;
  }
};

/// The scratch memory of a thread for the queries of a group. Rows of q and sums are `width` apart.
struct CachedAttentionScratch {
  CachedAttentionScratch(const CachedAttentionDescription& d, Scratch& from)
      : width(round_up(d.head_dim, 16)),
        q(from.take<float>(d.group() * width)),
        sums(from.take<float>(d.group() * width)),
        scores(from.take<float>(d.group() * kCacheBlock)),
        greatest(from.take<float>(d.group())),
        total(from.take<float>(d.group())) {}
  std::int64_t width;
  float* q;         // (group, width), scaled
  float* sums;      // (group, width) of p * v
  float* scores;    // (group, kCacheBlock)
  float* greatest;  // (group)
  float* total;     // (group) of the exponentials
};

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/cached_attention_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

class CpuCachedAttention final : public CpuOp<CachedAttentionDescription> {
 public:
  CpuCachedAttention(const CachedAttentionDescription& d, const CpuContext& context)
      : PlannedOp(d, context),
        // Additional threads pay off even for a short decoding step, since a token attends to hundreds of keys.
        parts_(static_cast<int>(std::min<std::int64_t>(std::max(1, context.threads), d.rows * d.kv_heads))) {
    Scratch scratch;
    CachedAttentionScratch(d, scratch);
    scratch_bytes_ = scratch.size_bytes();
  }

  OpMemoryRequirements memory_requirements() const override {
    return {.forward_workspace_bytes = scratch_bytes_ * static_cast<std::size_t>(parts_)};
  }
  std::string describe() const override { return fmt::format("{}: own kernels", text(d_)); }

  void run_forward(const Forward& args, const OpMemory& memory, Stream&) override {
    with_elements(d_.dtype, [&]<typename E>(E) {
      const CachedAttentionTask<E> task{.slots = d_.slots,
                                        .capacity = d_.capacity,
                                        .kv_heads = d_.kv_heads,
                                        .group = d_.group(),
                                        .head_dim = d_.head_dim,
                                        .window = d_.window,
                                        .scale = d_.score_scale(),
                                        .qkv = static_cast<const E*>(args.qkv),
                                        .slot = args.slot,
                                        .position = args.position,
                                        .cache_indirection = args.cache_indirection,
                                        .cache = static_cast<E*>(args.cache),
                                        .y = static_cast<E*>(args.y)};
      store_new(task);
      run_parts(parts_, [&](int part) {
        LOCKSTEP_DISPATCH(cached_attention<E>)
        (task, part_of(d_.rows * d_.kv_heads, part, parts_), scratch_of(memory.workspace, part));
      });
    });
  }

 private:
  template <typename E>
  void store_new(const CachedAttentionTask<E>& task) const {
    const std::int64_t n = d_.head_dim;
    for (std::int64_t row = 0; row < d_.rows; ++row) {
      if (!task.exists(row)) continue;
      const E* const k = task.qkv + row * d_.packed_width() + d_.heads * n;
      for (std::int64_t head = 0; head < d_.kv_heads; ++head) {
        E* const target = task.key(task.slot[row], head, task.position[row]);
        std::copy_n(k + head * n, n, target);
        std::copy_n(k + (d_.kv_heads + head) * n, n, target + task.values_after_keys());
      }
    }
  }
  CachedAttentionScratch scratch_of(void* workspace, int part) const {
    Scratch from(at(workspace, scratch_bytes_ * static_cast<std::size_t>(part)));
    return {d_, from};
  }

  int parts_;
  std::size_t scratch_bytes_ = 0;  // per thread
};

}  // namespace

std::unique_ptr<CachedAttention> make_cached_attention(const CachedAttentionDescription& d, const CpuContext& context) {
  require_float_or_bf16(d.dtype, "attention over a cache");
  return std::make_unique<CpuCachedAttention>(d, context);
}

}  // namespace lockstep::cpu
