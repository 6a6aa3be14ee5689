// Attention over a cache (lockstep/ops/cached_attention.h). A first kernel stores the keys and values of the new
// tokens. In the second, a block of four warps computes one head of one token: the keys of a tile are divided among the
// warps, whose lanes divide the elements of a head; then a thread adds up the values of its elements over the tile. The
// maximum and the sum of the softmax are continued from tile to tile. All that changes from step to step is in device
// memory, so that a step can be captured. Bytes read: of each token, keys and values of all positions, `group` times
// from the L2 cache.
#include <memory>

#include "kernels/cuda/base/block_sum.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/numbers.h"
#include "lockstep/ops/cached_attention.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 128, kWarps = kThreads / 32;
constexpr int kTile = 64;  // keys
constexpr int kMaxPerThread = static_cast<int>(AttentionDescription::kMaxHeadDim) / static_cast<int>(kThreads);

template <typename T>
struct Sizes {
  std::int64_t slots = 0, capacity = 0;
  int heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 0;
  const T* qkv = nullptr;
  const std::int32_t* slot = nullptr;
  const std::int32_t* position = nullptr;
  const std::int32_t* cache_indirection = nullptr;
  T* cache = nullptr;

  __device__ std::int64_t packed_width() const { return std::int64_t{heads + 2 * kv_heads} * head_dim; }
  __device__ std::int64_t values_after_keys() const { return slots * kv_heads * capacity * head_dim; }
  __device__ bool exists(std::int64_t row) const {
    return slot[row] >= 0 && slot[row] < slots && position[row] >= 0 && position[row] < capacity;
  }
  __device__ T* key(std::int64_t of_slot, int head, std::int64_t at) const {
    return cache + ((of_slot * kv_heads + head) * capacity + at) * head_dim;
  }
};

/// A block for each token.
template <typename T>
__global__ void __launch_bounds__(kThreads) store_new(Sizes<T> s) {
  const std::int64_t row = blockIdx.x;
  if (!s.exists(row)) return;
  const T* const k = s.qkv + row * s.packed_width() + std::int64_t{s.heads} * s.head_dim;
  const int n = s.kv_heads * s.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(kThreads)) {
    T* const target = s.key(s.slot[row], i / s.head_dim, s.position[row]) + i % s.head_dim;
    target[0] = k[i];
    target[s.values_after_keys()] = k[n + i];
  }
}

/// blockIdx.x: the token, blockIdx.y: the head.
template <typename T>
__global__ void __launch_bounds__(kThreads) attend(Sizes<T> s, T* y) {
  __shared__ float q[AttentionDescription::kMaxHeadDim], scores[kTile];
  __shared__ std::int64_t places[kTile];  // of the keys in the cache
  const std::int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y), group_head = head / (s.heads / s.kv_heads), n = s.head_dim;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  T* const target = y + (row * s.heads + head) * n;
  if (!s.exists(row)) {  // the same for the whole block
    for (int c = thread; c < n; c += static_cast<int>(kThreads)) target[c] = from_float<T>(0.0f);
    return;
  }
  const T* const query = s.qkv + row * s.packed_width() + std::int64_t{head} * n;
  for (int c = thread; c < n; c += static_cast<int>(kThreads)) q[c] = to_float(query[c]) * s.scale;
  const std::int64_t own = s.slot[row];
  const int n_keys = s.position[row] + 1;
  float greatest = -INFINITY, total = 0, sums[kMaxPerThread] = {};
  for (int first = 0; first < n_keys; first += kTile) {
    const int count = n_keys - first < kTile ? n_keys - first : kTile;
    __syncthreads();  // of the tile before this one
    if (thread < count) {
      const std::int64_t given = s.cache_indirection[own * s.capacity + first + thread];
      const bool is_own = first + thread == n_keys - 1 || given < 0 || given >= s.slots;
      places[thread] = s.key(is_own ? own : given, group_head, first + thread) - s.cache;
    }
    __syncthreads();
    for (int i = warp; i < kTile; i += static_cast<int>(kWarps)) {
      float score = 0;
      if (i < count)
        for (int c = lane; c < n; c += 32) score += q[c] * to_float(s.cache[places[i] + c]);
      score = warp_sum(score);
      if (lane == 0) scores[i] = score;
    }
    __syncthreads();
    const float mine = thread < count ? scores[thread] : -INFINITY;
    const float of_tile = block_max<kThreads>(mine);
    const float next = of_tile > greatest ? of_tile : greatest;
    const float factor = expf(greatest - next), p = thread < count ? expf(mine - next) : 0.0f;
    total = total * factor + block_sum<kThreads>(p);
    if (thread < kTile) scores[thread] = p;
    greatest = next;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kMaxPerThread; ++j) {
      const int c = thread + j * static_cast<int>(kThreads);
      if (c >= n) continue;
      float sum = sums[j] * factor;
      for (int i = 0; i < count; ++i) sum += scores[i] * to_float(s.cache[s.values_after_keys() + places[i] + c]);
      sums[j] = sum;
    }
  }
#pragma unroll
  for (int j = 0; j < kMaxPerThread; ++j) {
    const int c = thread + j * static_cast<int>(kThreads);
    if (c < n) target[c] = from_float<T>(sums[j] / total);
  }
}

class CudaCachedAttention final : public CachedAttention {
 public:
  explicit CudaCachedAttention(const CachedAttentionDescription& d) : d_(d) {}

  OpMemoryRequirements memory_requirements() const override { return {}; }
  std::string describe() const override { return fmt::format("{}: own kernels", text(d_)); }

  void run_forward(const Forward& args, const OpMemory&, Stream& stream) override {
    dispatch(d_.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const Sizes<T> sizes{.slots = d_.slots,
                           .capacity = d_.capacity,
                           .heads = static_cast<int>(d_.heads),
                           .kv_heads = static_cast<int>(d_.kv_heads),
                           .head_dim = static_cast<int>(d_.head_dim),
                           .scale = d_.score_scale(),
                           .qkv = static_cast<const T*>(args.qkv),
                           .slot = args.slot,
                           .position = args.position,
                           .cache_indirection = args.cache_indirection,
                           .cache = static_cast<T*>(args.cache)};
      const auto rows = static_cast<unsigned>(d_.rows);
      launch(store_new<T>, {.blocks = rows, .threads = kThreads}, stream, sizes);
      launch(attend<T>, {.blocks = rows, .threads = kThreads, .blocks_y = static_cast<unsigned>(d_.heads)}, stream,
             sizes, static_cast<T*>(args.y));
    });
  }

 private:
  CachedAttentionDescription d_;
};

}  // namespace

std::unique_ptr<CachedAttention> make_cached_attention(const CachedAttentionDescription& d, const CudaContext&) {
  require_possible(d);
  require(d.heads < 65536, ErrorCode::op_description, "{}: there may be at most 65,535 heads", text(d));
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaCachedAttention>(d);
}

}  // namespace lockstep::cuda
