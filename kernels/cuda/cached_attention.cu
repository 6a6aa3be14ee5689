// Attention over a cache (lockstep/ops/cached_attention.h). A first kernel stores the keys and values of the new
// tokens. In the second, a block computes a tile of 64 keys for up to eight heads of q that share a key-value head, so
// that keys and values are read once for all of them: several lanes read a key together, 16 bytes each, and then
// several threads read a value together. A few tokens alone would leave most multiprocessors idle, so each tile gets a
// block of its own, and the last block of a token to finish adds up what the blocks left in the workspace. If there are
// many tokens, each has one block, which continues from tile to tile. Tiles are added in their order either way, by the
// same operations, so that the bits do not depend on the number of tokens. All that changes from step to step is in
// device memory, so that a step can be captured. Bytes read for each token: the keys and values of all its positions,
// ceil(group / 8) times.
#include <algorithm>
#include <bit>
#include <memory>

#include "kernels/cuda/base/block_sum.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/rows.h"
#include "kernels/cuda/matmul_few_rows.h"
#include "lockstep/ops/cached_attention.h"
#include "lockstep/workspace.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 128, kWarps = kThreads / 32;
constexpr int kTile = 64;                  // keys
constexpr int kMaxHeads = 8;               // heads of q that a block computes together
constexpr std::int64_t kMaxValues = 1024;  // elements of y in these heads
constexpr unsigned kLeastBlocks = 3;       // per multiprocessor: leaves enough registers for the sums of all heads
constexpr int kMaxPerThread = static_cast<int>(kMaxValues) / static_cast<int>(kThreads);
constexpr std::size_t kMaxWorkspace = 64 << 20;  // bytes; if more were needed, each token gets only one block
static_assert(kMaxValues >= AttentionDescription::kMaxHeadDim);

template <typename T>
struct Sizes {
  std::int64_t slots = 0, capacity = 0;
  int heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  float scale = 0;
  const T* qkv = nullptr;
  const std::int32_t* slot = nullptr;
  const std::int32_t* position = nullptr;
  const std::int32_t* cache_indirection = nullptr;
  T* cache = nullptr;
  unsigned parts = 1;         // blocks among which the tiles of a token are divided: 1, or one per tile
  int heads_together = 1;     // heads of q that a block computes together
  int head_parts = 1;         // blocks among which the heads of q of a key-value head are divided
  int lanes_of_key = 1;       // lanes that read one key together; a power of two
  int threads_of_value = 1;   // threads that add up one value together; a power of two
  float* partials = nullptr;  // (rows, heads, parts, 2 + head_dim): greatest score, sum of exponentials, sums of values
  unsigned* n_finished = nullptr;  // number of finished blocks, for each token and each part of the heads

  __device__ float* partial(std::int64_t row_and_head, int tile) const {
    return partials + (row_and_head * parts + tile) * (2 + head_dim);
  }
  __device__ std::int64_t packed_width() const { return std::int64_t{heads + 2 * kv_heads} * head_dim; }
  __device__ std::int64_t values_after_keys() const { return slots * kv_heads * capacity * head_dim; }
  __device__ bool exists(std::int64_t row) const {
    return slot[row] >= 0 && slot[row] < slots && position[row] >= 0 && position[row] < capacity;
  }
  __device__ T* key(std::int64_t of_slot, int head, std::int64_t at) const {
    return cache + ((of_slot * kv_heads + head) * capacity + at) * head_dim;
  }
};

/// One block per token.
template <typename T>
__global__ void __launch_bounds__(kThreads) store_new(Sizes<T> s) {
  const std::int64_t row = blockIdx.x;
  const int n_counters = s.parts > 1 ? s.kv_heads * s.head_parts : 0;
  for (int i = static_cast<int>(threadIdx.x); i < n_counters; i += static_cast<int>(kThreads))
    s.n_finished[row * n_counters + i] = 0;
  if (!s.exists(row)) return;
  const T* const k = s.qkv + row * s.packed_width() + std::int64_t{s.heads} * s.head_dim;
  const int n = s.kv_heads * s.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(kThreads)) {
    T* const target = s.key(s.slot[row], i / s.head_dim, s.position[row]) + i % s.head_dim;
    target[0] = k[i];
    target[s.values_after_keys()] = k[n + i];
  }
}

/// The softmax of the scores so far, multiplied by the values. Tiles are added in order.
struct Running {
  float greatest = -INFINITY, total = 0, value = 0;

  __device__ void add(float of_tile, float total_of_tile, float value_of_tile) {
    const float next = of_tile > greatest ? of_tile : greatest;
    const float before = expf(greatest - next), added = expf(of_tile - next);
    total = fmaf(total, before, total_of_tile * added);
    value = fmaf(value, before, value_of_tile * added);
    greatest = next;
  }
};

/// blockIdx.x selects the token and a part of its tiles, blockIdx.y the key-value head and a part of its heads of q.
/// kPack is the number of elements of a key or value that are read at a time.
template <typename T, int kPack>
__global__ void __launch_bounds__(kThreads, kLeastBlocks) attend(Sizes<T> s, T* y) {
  __shared__ float scores[kMaxHeads][kTile], greatest[kMaxHeads], totals[kMaxHeads];
  __shared__ std::int64_t places[kTile];  // of the keys in the cache
  __shared__ bool is_last;
  const std::int64_t row = blockIdx.x / s.parts;
  const int part = static_cast<int>(blockIdx.x % s.parts), n = s.head_dim, packs = n / kPack;
  const int kv_head = static_cast<int>(blockIdx.y) / s.head_parts, group = s.heads / s.kv_heads;
  const int skipped = static_cast<int>(blockIdx.y) % s.head_parts * s.heads_together;
  const int n_heads = std::min(s.heads_together, group - skipped), n_values = n_heads * n;
  const std::int64_t first_head = row * s.heads + std::int64_t{kv_head} * group + skipped;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  T* const target = y + first_head * n;
  if (!s.exists(row)) {  // the same for the whole block, like all other conditions for a return
    for (int i = thread; part == 0 && i < n_values; i += static_cast<int>(kThreads)) target[i] = from_float<T>(0.0f);
    return;
  }
  const int end = s.position[row] + 1, begin = s.window > 0 && end > s.window ? end - s.window : 0;
  const int n_keys = end - begin, n_tiles = (n_keys + kTile - 1) / kTile;
  if (part >= n_tiles) return;
  const bool is_divided = s.parts > 1;  // one tile per block
  float* const q = shared_memory<float>();
  float* const sums = q + s.heads_together * n;  // partial sums of warps that add up the same elements
  const T* const query = s.qkv + row * s.packed_width() + (std::int64_t{kv_head} * group + skipped) * n;
  for (int i = thread; i < n_values; i += static_cast<int>(kThreads)) q[i] = to_float(query[i]) * s.scale;
  const std::int64_t own = s.slot[row];
  Running running[kMaxPerThread];
  for (int tile = part; tile < (is_divided ? part + 1 : n_tiles); ++tile) {
    const int first = tile * kTile, count = n_keys - first < kTile ? n_keys - first : kTile;
    __syncthreads();  // the previous tile is finished
    if (thread < count) {
      const std::int64_t at = begin + first + thread, given = s.cache_indirection[own * s.capacity + at];
      const bool is_own = at == end - 1 || given < 0 || given >= s.slots;
      places[thread] = s.key(is_own ? own : given, kv_head, at) - s.cache;
    }
    __syncthreads();
    const int together = 32 / s.lanes_of_key;  // keys that a warp reads at a time
    for (int i0 = warp * together; i0 < kTile; i0 += static_cast<int>(kWarps) * together) {
      const int i = i0 + lane / s.lanes_of_key;
      float sum[kMaxHeads] = {};
      if (i < count)
        for (int c = lane % s.lanes_of_key; c < packs; c += s.lanes_of_key) {
          const Floats<kPack> k = load_floats<kPack>(s.cache + places[i] + c * kPack);
#pragma unroll
          for (int h = 0; h < kMaxHeads; ++h) {
            if (h >= n_heads) continue;
#pragma unroll
            for (int e = 0; e < kPack; ++e) sum[h] += q[h * n + c * kPack + e] * k[e];
          }
        }
#pragma unroll
      for (int h = 0; h < kMaxHeads; ++h) {
        if (h >= n_heads) continue;
        for (int distance = s.lanes_of_key / 2; distance > 0; distance /= 2)
          sum[h] += __shfl_xor_sync(kAllLanes, sum[h], distance);
        if (i < count && lane % s.lanes_of_key == 0) scores[h][i] = sum[h];
      }
    }
    __syncthreads();
    for (int h = warp; h < n_heads; h += static_cast<int>(kWarps)) {
      const float low = lane < count ? scores[h][lane] : -INFINITY;
      const float high = lane + 32 < count ? scores[h][lane + 32] : -INFINITY;
      const float most = warp_max(high > low ? high : low);
      const float of_low = lane < count ? expf(low - most) : 0.0f,
                  of_high = lane + 32 < count ? expf(high - most) : 0.0f;
      scores[h][lane] = of_low;
      scores[h][lane + 32] = of_high;
      const float total = warp_sum(of_low + of_high);
      if (lane == 0) {
        greatest[h] = most;
        totals[h] = total;
      }
    }
    __syncthreads();
    const int width = s.threads_of_value, alike = static_cast<int>(kThreads) / std::max(width, 32);
    for (int c0 = 0; c0 < packs; c0 += width) {
      const int c = c0 + thread % width;
      float sum[kMaxHeads][kPack] = {};
      if (c < packs)
        for (int i = thread / width; i < count; i += static_cast<int>(kThreads) / width) {
          const Floats<kPack> v = load_floats<kPack>(s.cache + s.values_after_keys() + places[i] + c * kPack);
#pragma unroll
          for (int h = 0; h < kMaxHeads; ++h) {
            if (h >= n_heads) continue;
#pragma unroll
            for (int e = 0; e < kPack; ++e) sum[h][e] += scores[h][i] * v[e];
          }
        }
#pragma unroll
      for (int h = 0; h < kMaxHeads; ++h) {
        if (h >= n_heads) continue;
#pragma unroll
        for (int e = 0; e < kPack; ++e) {
          for (int distance = width; distance < 32; distance *= 2)
            sum[h][e] += __shfl_xor_sync(kAllLanes, sum[h][e], distance);
          if (c < packs && (width >= 32 || lane < width))
            sums[thread / std::max(width, 32) * n_values + h * n + c * kPack + e] = sum[h][e];
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kMaxPerThread; ++j) {
      const int i = thread + j * static_cast<int>(kThreads);
      if (i >= n_values) continue;
      float value = 0;
      for (int k = 0; k < alike; ++k) value += sums[k * n_values + i];
      if (is_divided)
        s.partial(first_head + i / n, tile)[2 + i % n] = value;
      else
        running[j].add(greatest[i / n], totals[i / n], value);
    }
  }
  if (is_divided) {
    if (thread < n_heads) {
      float* const partial = s.partial(first_head + thread, part);
      partial[0] = greatest[thread];
      partial[1] = totals[thread];
    }
    __threadfence();
    __syncthreads();
    if (thread == 0)
      is_last = atomicAdd(s.n_finished + row * gridDim.y + blockIdx.y, 1u) == static_cast<unsigned>(n_tiles) - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
#pragma unroll
    for (int j = 0; j < kMaxPerThread; ++j) {
      const int i = thread + j * static_cast<int>(kThreads);
      for (int tile = 0; i < n_values && tile < n_tiles; ++tile) {
        const float* const partial = s.partial(first_head + i / n, tile);
        running[j].add(partial[0], partial[1], partial[2 + i % n]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kMaxPerThread; ++j) {
    const int i = thread + j * static_cast<int>(kThreads);
    if (i < n_values) target[i] = from_float<T>(running[j].value / running[j].total);
  }
}

class CudaCachedAttention final : public CudaOp<CachedAttentionDescription> {
 public:
  CudaCachedAttention(const CachedAttentionDescription& d, const CudaContext& context) : PlannedOp(d, context) {
    heads_together_ = static_cast<int>(std::min({d.group(), std::int64_t{kMaxHeads}, kMaxValues / d.head_dim}));
    head_parts_ = static_cast<int>((d.group() + heads_together_ - 1) / heads_together_);
    const std::int64_t most = d.window > 0 ? std::min(d.capacity, d.window) : d.capacity;  // keys of a token
    const std::int64_t tiles = (most + kTile - 1) / kTile, blocks = d.rows * d.kv_heads * head_parts_;
    WorkspacePlan workspace;
    at_.partials =
        workspace.take(static_cast<std::size_t>(d.rows * d.heads * tiles * (d.head_dim + 2)) * sizeof(float));
    at_.n_finished = workspace.take(static_cast<std::size_t>(blocks) * sizeof(unsigned));
    workspace_bytes_ = FewRows::workspace_bytes(d);
    if (tiles == 1 || blocks >= 4 * context.multiprocessors || workspace.size_bytes() > kMaxWorkspace) return;
    parts_ = static_cast<unsigned>(tiles);
    workspace_bytes_ = std::max(workspace_bytes_, workspace.size_bytes());
  }

  OpMemoryRequirements memory_requirements() const override { return {.forward_workspace_bytes = workspace_bytes_}; }
  std::string describe() const override {
    return fmt::format("{}: own kernels, {}", text(d_),
                       parts_ > 1 ? fmt::format("a block for each {} keys", kTile) : "a block for all keys");
  }

  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override {
    if (FewRows::attend(d_, args, memory.workspace)) return;
    dispatch(d_.dtype, [&]<typename T>(T*) {
      constexpr int kPack = Pack<T>::kSize;
      const bool is_packed = d_.head_dim % kPack == 0;
      const auto threads_of_head = std::bit_ceil(static_cast<unsigned>(is_packed ? d_.head_dim / kPack : d_.head_dim));
      const Sizes<T> sizes{.slots = d_.slots,
                           .capacity = d_.capacity,
                           .heads = static_cast<int>(d_.heads),
                           .kv_heads = static_cast<int>(d_.kv_heads),
                           .head_dim = static_cast<int>(d_.head_dim),
                           .window = static_cast<int>(d_.window),
                           .scale = d_.score_scale(),
                           .qkv = static_cast<const T*>(args.qkv),
                           .slot = args.slot,
                           .position = args.position,
                           .cache_indirection = args.cache_indirection,
                           .cache = static_cast<T*>(args.cache),
                           .parts = parts_,
                           .heads_together = heads_together_,
                           .head_parts = head_parts_,
                           .lanes_of_key = static_cast<int>(std::min(threads_of_head, 32u)),
                           .threads_of_value = static_cast<int>(std::min(threads_of_head, kThreads)),
                           .partials = parts_ > 1 ? at<float>(memory.workspace, at_.partials) : nullptr,
                           .n_finished = parts_ > 1 ? at<unsigned>(memory.workspace, at_.n_finished) : nullptr};
      const auto rows = static_cast<unsigned>(d_.rows);
      launch(store_new<T>, {.blocks = rows, .threads = kThreads}, stream, sizes);
      launch(is_packed ? attend<T, kPack> : attend<T, 1>,
             {.blocks = rows * parts_,
              .threads = kThreads,
              .blocks_y = static_cast<unsigned>(d_.kv_heads * head_parts_),
              .shared_bytes = static_cast<unsigned>((1 + kWarps) * sizeof(float)) *
                              static_cast<unsigned>(heads_together_ * d_.head_dim)},
             stream, sizes, static_cast<T*>(args.y));
    });
  }

 private:
  int heads_together_ = 1, head_parts_ = 1;
  unsigned parts_ = 1;
  std::size_t workspace_bytes_ = 0;
  struct {
    std::size_t partials = 0, n_finished = 0;
  } at_;
};

}  // namespace

std::unique_ptr<CachedAttention> make_cached_attention(const CachedAttentionDescription& d,
                                                       const CudaContext& context) {
  require(d.heads < 65536, ErrorCode::op_description, "{}: there may be at most 65,535 heads", text(d));
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaCachedAttention>(d, context);
}

}  // namespace lockstep::cuda
