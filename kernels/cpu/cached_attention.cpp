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
  const CachedAttentionDescription& d;
  const CachedAttention::Forward& args;

  bool exists(std::int64_t row) const {
    const std::int32_t slot = args.slot[row], position = args.position[row];
    return slot >= 0 && slot < d.slots && position >= 0 && position < d.capacity;
  }
  /// The row of q, k and v of a new token.
  const E* packed(std::int64_t row) const { return static_cast<const E*>(args.qkv) + row * d.packed_width(); }
  /// The value of a key is cached_elements() after it.
  E* key(std::int64_t slot, std::int64_t head, std::int64_t position) const {
    return static_cast<E*>(args.cache) + ((slot * d.kv_heads + head) * d.capacity + position) * d.head_dim;
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
      const CachedAttentionTask<E> task{d_, args};
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
      const E* const k = task.packed(row) + d_.heads * n;
      for (std::int64_t head = 0; head < d_.kv_heads; ++head) {
        E* const target = task.key(task.args.slot[row], head, task.args.position[row]);
        std::copy_n(k + head * n, n, target);
        std::copy_n(k + (d_.kv_heads + head) * n, n, target + d_.cached_elements());
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
