// The kernels of attention.h. A block of 128 threads works on tiles of kTile queries by kTile keys in shared memory,
// kTile * kDim = 2048 elements each, where kDim is head_dim rounded up to 64, 128 or 256. Sums over a tile's other
// dimension are 4 x 4 elements per thread, in registers. There are three kernels: forward, which keeps the running
// maximum and sum of each query's softmax; dq, a block per tile of queries; and dk and dv, a block per tile of keys,
// for all query heads of the key-value head. The latter two compute the probabilities again from log_sum_exp.
#include "kernels/cuda/attention.h"

#include "kernels/cuda/base/block_sum.h"
#include "kernels/cuda/base/numbers.h"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 128, kMaskThreads = 128;
template <typename T>
constexpr float kGreatest = std::is_same_v<T, Half> ? 65504.0f : 0x1.fep127f;
constexpr int kTileElements = 2048;

/// The sizes of a call, and pointers to its tensors.
template <typename T>
struct Sizes {
  int sequence = 0, heads = 0, kv_heads = 0, head_dim = 0, n_tiles = 0;
  float scale = 0;
  const T* qkv = nullptr;
  const std::int32_t* document_start = nullptr;
  int window = 0;
  AttentionCondition condition{};

  /// Returns false if this block has nothing to do.
  __device__ bool computes(std::int64_t sample) const {
    return condition.flags == nullptr || condition.flags[sample / condition.samples_per_flag * condition.stride] != 0;
  }
  __device__ std::int64_t packed_width() const { return std::int64_t{heads + 2 * kv_heads} * head_dim; }
  /// The offset of one head of q, k or v of a sample. Its rows are packed_width() apart.
  __device__ std::int64_t packed(std::int64_t sample, int head) const {
    return sample * sequence * packed_width() + std::int64_t{head} * head_dim;
  }
  __device__ std::int64_t k_head(int head) const { return heads + head / (heads / kv_heads); }
  /// The first token that `token` may attend to. Nothing outside of the sample is ever read.
  __device__ int start(std::int64_t sample, int token) const {
    const int least = window > 0 && token >= window ? token - window + 1 : 0;
    if (document_start == nullptr) return least;
    const std::int32_t given = document_start[sample * sequence + token];
    return given < least ? least : given < token ? given : token;
  }
};

/// A tile of rows of kDim elements. They are padded so that neighbouring rows begin in different banks of shared
/// memory.
template <int kDim>
struct Tile {
  static constexpr int kTile = kTileElements / kDim, kRow = kDim + 1;
  float values[kTile * kRow];

  __device__ float at(int row, int c) const { return values[row * kRow + c]; }
  /// Loads rows [first, first + kTile) of a matrix whose rows are `stride` apart. Elements outside of the matrix are
  /// zero.
  template <typename T>
  __device__ void load(const T* source, std::int64_t stride, int first, int n_rows, int head_dim) {
    for (int i = static_cast<int>(threadIdx.x); i < kTileElements; i += kThreads) {
      const int row = i / kDim, c = i % kDim;
      const bool exists = first + row < n_rows && c < head_dim;
      values[row * kRow + c] = exists ? to_float(source[(first + row) * stride + c]) : 0.0f;
    }
  }
};

/// Scores of a tile, or their gradients: (queries, keys).
template <int kTile>
struct Scores {
  float values[kTile * (kTile + 1)];
  __device__ float& at(int query, int key) { return values[query * (kTile + 1) + key]; }
};

/// Calls f(query, key, a[query] . b[key]) for this thread's elements of the tile of products.
template <int kDim, typename F>
__device__ void for_products(const Tile<kDim>& a, const Tile<kDim>& b, int head_dim, const F& f) {
  constexpr int kTile = Tile<kDim>::kTile, kRows = kThreads / kTile;  // queries that the block covers at once
  constexpr int kMine = kTile > kRows ? kTile / kRows : 1;
  const int key = static_cast<int>(threadIdx.x) % kTile, query = static_cast<int>(threadIdx.x) / kTile;
  if (query >= kTile) return;
  float sums[kMine] = {};
  for (int c = 0; c < head_dim; ++c) {
    const float b_c = b.at(key, c);
#pragma unroll
    for (int i = 0; i < kMine; ++i) sums[i] += a.at(query + i * kRows, c) * b_c;
  }
#pragma unroll
  for (int i = 0; i < kMine; ++i) f(query + i * kRows, key, sums[i]);
}

/// A (kTile, kDim) result, of which each thread has 4 x 4 elements: rows row() + i, columns column() + j * kColumns.
template <int kDim>
struct Result {
  static constexpr int kTile = Tile<kDim>::kTile, kColumns = kDim / 4;
  float sums[4][4] = {};

  __device__ static int row() { return static_cast<int>(threadIdx.x) / kColumns * 4; }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % kColumns; }
  /// += sum over i of factor(row, i) * tile(i, column)
  template <typename Factor>
  __device__ void add(const Factor& factor, const Tile<kDim>& tile) {
    for (int inner = 0; inner < kTile; ++inner)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float f = factor(row() + i, inner);
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] += f * tile.at(inner, column() + j * kColumns);
      }
  }
  template <typename T>
  __device__ void store(T* target, std::int64_t stride, int first, int n_rows, int head_dim) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int c = column() + j * kColumns;
        if (first + row() + i < n_rows && c < head_dim)
          target[(first + row() + i) * stride + c] = from_float<T>(sums[i][j]);
      }
  }
};

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, 3) forward_tile(Sizes<T> s, T* y, float* log_sum_exp) {
  constexpr int kTile = Tile<kDim>::kTile;
  __shared__ Tile<kDim> q, kv;  // the keys, then the values
  __shared__ Scores<kTile> p;
  __shared__ float greatest[kTile], total[kTile], factor[kTile];
  const int tile = s.n_tiles - 1 - static_cast<int>(blockIdx.x) % s.n_tiles;  // tiles with the most work come first
  const int head = static_cast<int>(blockIdx.x) / s.n_tiles, begin = tile * kTile;
  const std::int64_t sample = blockIdx.y, width = s.packed_width();
  if (!s.computes(sample)) return;
  const T* const k = s.qkv + s.packed(sample, static_cast<int>(s.k_head(head)));
  const T* const v = k + std::int64_t{s.kv_heads} * s.head_dim;
  const int thread = static_cast<int>(threadIdx.x);
  q.load(s.qkv + s.packed(sample, head), width, begin, s.sequence, s.head_dim);
  if (thread < kTile) {
    greatest[thread] = -INFINITY;
    total[thread] = 0;
  }
  Result<kDim> sums;
  for (int keys = s.start(sample, begin) / kTile * kTile; keys <= begin; keys += kTile) {
    __syncthreads();  // all threads have read the values of the previous tile
    kv.load(k, width, keys, s.sequence, s.head_dim);
    __syncthreads();
    for_products(q, kv, s.head_dim, [&](int query, int key, float product) {
      const int token = begin + query;
      const bool sees = token < s.sequence && keys + key <= token && keys + key >= s.start(sample, token);
      p.at(query, key) = sees ? product * s.scale : -INFINITY;
    });
    __syncthreads();
    kv.load(v, width, keys, s.sequence, s.head_dim);
    if (thread < kTile) {
      float now = greatest[thread];
      for (int key = 0; key < kTile; ++key) now = fmaxf(now, p.at(thread, key));
      factor[thread] = now == greatest[thread] ? 1.0f : expf(greatest[thread] - now);
      greatest[thread] = now;
    }
    __syncthreads();
    for (int i = thread; i < kTile * kTile; i += kThreads) {
      float& score = p.at(i / kTile, i % kTile);
      score = score == -INFINITY ? 0.0f : expf(score - greatest[i / kTile]);
    }
    __syncthreads();
    if (thread < kTile) {
      float sum = 0;
      for (int key = 0; key < kTile; ++key) sum += p.at(thread, key);
      total[thread] = total[thread] * factor[thread] + sum;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) sums.sums[i][j] *= factor[Result<kDim>::row() + i];
    sums.add([&](int query, int key) { return p.at(query, key); }, kv);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) sums.sums[i][j] /= total[Result<kDim>::row() + i];
  sums.store(y + (sample * s.sequence * s.heads + head) * s.head_dim, std::int64_t{s.heads} * s.head_dim, begin,
             s.sequence, s.head_dim);
  if (log_sum_exp != nullptr && thread < kTile && begin + thread < s.sequence)
    log_sum_exp[(sample * s.heads + head) * s.sequence + begin + thread] = greatest[thread] + logf(total[thread]);
}

/// delta = y . dy, with one warp per (sample, token, head).
template <typename T>
__global__ void __launch_bounds__(kThreads)
    sum_delta(const T* y, const T* dy, float* delta, std::int64_t n_rows, Sizes<T> s) {
  const std::int64_t row = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= n_rows || !s.computes(row / s.heads / s.sequence)) return;
  float sum = 0;
  for (int c = static_cast<int>(threadIdx.x) % 32; c < s.head_dim; c += 32)
    sum += to_float(y[row * s.head_dim + c]) * to_float(dy[row * s.head_dim + c]);
  sum = warp_sum(sum);
  const std::int64_t token = row / s.heads, head = row % s.heads;
  if (threadIdx.x % 32 == 0) delta[(token / s.sequence * s.heads + head) * s.sequence + token % s.sequence] = sum;
}

/// Computes p and the gradient of the scores of a tile. Queries and keys outside of the sequence get zeros.
template <typename T, int kDim>
struct TileGradient {
  static constexpr int kTile = Tile<kDim>::kTile;
  const Sizes<T>& s;
  std::int64_t sample;
  const float *log_sum_exp, *delta;  // of the head

  __device__ void compute(const Tile<kDim>& q, const Tile<kDim>& k, const Tile<kDim>& dy, const Tile<kDim>& v,
                          int queries, int keys, Scores<kTile>& p, Scores<kTile>& dscore) const {
    for_products(q, k, s.head_dim, [&](int query, int key, float product) {
      const int token = queries + query;
      const bool sees = token < s.sequence && keys + key <= token && keys + key >= s.start(sample, token);
      p.at(query, key) = sees ? expf(product * s.scale - log_sum_exp[token]) : 0.0f;
    });
    for_products(dy, v, s.head_dim, [&](int query, int key, float product) {  // this thread's elements again
      const int token = queries + query;
      dscore.at(query, key) = token < s.sequence ? p.at(query, key) * (product - delta[token]) * s.scale : 0.0f;
    });
  }
};

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, 3)
    dq_tile(Sizes<T> s, const T* dy, const float* log_sum_exp, const float* delta, T* dqkv) {
  constexpr int kTile = Tile<kDim>::kTile;
  __shared__ Tile<kDim> q, g, k, v;
  __shared__ Scores<kTile> p, dscore;
  const int tile = s.n_tiles - 1 - static_cast<int>(blockIdx.x) % s.n_tiles;
  const int head = static_cast<int>(blockIdx.x) / s.n_tiles, begin = tile * kTile;
  const std::int64_t sample = blockIdx.y, width = s.packed_width(), row = (sample * s.heads + head) * s.sequence;
  if (!s.computes(sample)) return;
  const T* const keys_of_head = s.qkv + s.packed(sample, static_cast<int>(s.k_head(head)));
  const TileGradient<T, kDim> gradient{s, sample, log_sum_exp + row, delta + row};
  q.load(s.qkv + s.packed(sample, head), width, begin, s.sequence, s.head_dim);
  g.load(dy + (sample * s.sequence * s.heads + head) * s.head_dim, std::int64_t{s.heads} * s.head_dim, begin,
         s.sequence, s.head_dim);
  Result<kDim> dq;
  for (int keys = s.start(sample, begin) / kTile * kTile; keys <= begin; keys += kTile) {
    __syncthreads();
    k.load(keys_of_head, width, keys, s.sequence, s.head_dim);
    v.load(keys_of_head + std::int64_t{s.kv_heads} * s.head_dim, width, keys, s.sequence, s.head_dim);
    __syncthreads();
    gradient.compute(q, k, g, v, begin, keys, p, dscore);
    __syncthreads();
    dq.add([&](int query, int key) { return dscore.at(query, key); }, k);
  }
  dq.store(dqkv + s.packed(sample, head), width, begin, s.sequence, s.head_dim);
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, 3)
    dk_dv_tile(Sizes<T> s, const T* dy, const float* log_sum_exp, const float* delta, T* dqkv) {
  constexpr int kTile = Tile<kDim>::kTile;
  __shared__ Tile<kDim> q, g, k, v;
  __shared__ Scores<kTile> p, dscore;
  const int begin = static_cast<int>(blockIdx.x) % s.n_tiles * kTile;
  const int kv_head = static_cast<int>(blockIdx.x) / s.n_tiles, group = s.heads / s.kv_heads;
  const std::int64_t sample = blockIdx.y, width = s.packed_width();
  if (!s.computes(sample)) return;
  const std::int64_t k_at = s.packed(sample, s.heads + kv_head), v_at = k_at + std::int64_t{s.kv_heads} * s.head_dim;
  k.load(s.qkv + k_at, width, begin, s.sequence, s.head_dim);
  v.load(s.qkv + v_at, width, begin, s.sequence, s.head_dim);
  Result<kDim> dk, dv;
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const std::int64_t row = (sample * s.heads + head) * s.sequence;
    const TileGradient<T, kDim> gradient{s, sample, log_sum_exp + row, delta + row};
    for (int queries = begin; queries < s.sequence; queries += kTile) {
      if (s.start(sample, queries) >= begin + kTile) break;  // all further queries belong to documents that begin later
      __syncthreads();
      q.load(s.qkv + s.packed(sample, head), width, queries, s.sequence, s.head_dim);
      g.load(dy + (sample * s.sequence * s.heads + head) * s.head_dim, std::int64_t{s.heads} * s.head_dim, queries,
             s.sequence, s.head_dim);
      __syncthreads();
      gradient.compute(q, k, g, v, queries, begin, p, dscore);
      __syncthreads();
      dv.add([&](int key, int query) { return p.at(query, key); }, g);
      dk.add([&](int key, int query) { return dscore.at(query, key); }, q);
    }
  }
  dk.store(dqkv + k_at, width, begin, s.sequence, s.head_dim);
  dv.store(dqkv + v_at, width, begin, s.sequence, s.head_dim);
}

/// One block for the samples of each graph. Each thread looks for documents that begin in its part of the tokens. The
/// numbers of these documents follow from a sum over the parts.
__global__ void __launch_bounds__(kThreads) list_documents(const std::int32_t* document_start, DocumentList list) {
  __shared__ int count[kThreads];
  const std::int32_t* const starts = document_start + std::int64_t{blockIdx.x} * list.n_tokens;
  std::int32_t* const length = list.memory + std::int64_t{blockIdx.x} * list.stride;
  std::int32_t* const offsets[3] = {length + list.qkv_offset, length + list.y_offset, length + list.log_sum_exp_offset};
  const int thread = static_cast<int>(threadIdx.x), part = (list.n_tokens + kThreads - 1) / kThreads;
  const int begin = thread * part, end = begin + part < list.n_tokens ? begin + part : list.n_tokens;
  const auto begins = [&](int token) { return token % list.sequence == 0 || starts[token] == token % list.sequence; };
  int mine = 0;
  for (int token = begin; token < end; ++token) mine += begins(token) ? 1 : 0;
  count[thread] = mine;
  __syncthreads();
  int number = 0, all = 0;
  for (int i = 0; i < kThreads; ++i) {
    if (i < thread) number += count[i];
    all += count[i];
  }
  const bool too_many = all > list.capacity;
  if (thread == 0) length[list.are_too_many] = too_many ? 1 : 0;
  const auto put = [&](int document, int token) {
    for (int i = 0; i < 3; ++i) offsets[i][document] = token * list.elements[i];
  };
  // First stores the tokens at which documents begin. Lengths are then differences of neighbours.
  for (int token = begin; token < end; ++token)
    if (begins(token) && !too_many) put(number++, token);
  for (int i = (too_many ? 0 : all) + thread; i <= list.capacity; i += kThreads) put(i, too_many ? 0 : list.n_tokens);
  __syncthreads();
  for (int i = thread; i < list.capacity; i += kThreads)
    length[i] = (offsets[2][i + 1] - offsets[2][i]) / list.elements[2];
}

/// A block per token.
template <typename T>
__global__ void __launch_bounds__(kMaskThreads)
    write_mask(const std::int32_t* document_start, T* mask, int sequence, int window) {
  const std::int64_t row = blockIdx.x;
  const int token = static_cast<int>(row % sequence);
  int first = document_start[row];
  if (window > 0 && token - window + 1 > first) first = token - window + 1;
  const T lowest = from_float<T>(-kGreatest<T>), zero = from_float<T>(0);
  for (int s = static_cast<int>(threadIdx.x) * Pack<T>::kSize; s < sequence; s += kMaskThreads * Pack<T>::kSize) {
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < Pack<T>::kSize; ++i) pack.values[i] = s + i < first ? lowest : zero;
    *reinterpret_cast<Pack<T>*>(mask + row * sequence + s) = pack;
  }
}

/// Calls f with a null pointer to the type, and with the dimension of tiles.
template <typename F>
void dispatch_tiles(const AttentionDescription& d, const F& f) {
  dispatch(d.dtype, [&](auto* type) {
    if (d.head_dim <= 64)
      f(type, std::integral_constant<int, 64>{});
    else if (d.head_dim <= 128)
      f(type, std::integral_constant<int, 128>{});
    else
      f(type, std::integral_constant<int, 256>{});
  });
}

template <typename T, int kDim>
Sizes<T> sizes_of(const AttentionDescription& d, const void* qkv, const std::int32_t* document_start,
                  const AttentionCondition& condition) {
  return {.sequence = static_cast<int>(d.sequence),
          .heads = static_cast<int>(d.heads),
          .kv_heads = static_cast<int>(d.kv_heads),
          .head_dim = static_cast<int>(d.head_dim),
          .n_tiles = static_cast<int>((d.sequence + Tile<kDim>::kTile - 1) / Tile<kDim>::kTile),
          .scale = d.score_scale(),
          .qkv = static_cast<const T*>(qkv),
          .document_start = d.documents ? document_start : nullptr,
          .window = static_cast<int>(d.window),
          .condition = condition};
}

}  // namespace

void attention_forward(const AttentionDescription& d, const Attention::Forward& args, float* log_sum_exp,
                       const AttentionCondition& condition, Stream& stream) {
  dispatch_tiles(d, [&](auto* type, auto dim) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto sizes = sizes_of<T, dim()>(d, args.qkv, args.document_start, condition);
    launch(forward_tile<T, dim()>,
           {.blocks = static_cast<unsigned>(sizes.n_tiles * sizes.heads),
            .threads = kThreads,
            .blocks_y = static_cast<unsigned>(d.batch)},
           stream, sizes, static_cast<T*>(args.y), log_sum_exp);
  });
}

void attention_documents(const std::int32_t* document_start, const DocumentList& list, int n_lists, Stream& stream) {
  launch(list_documents, {.blocks = static_cast<unsigned>(n_lists), .threads = kThreads}, stream, document_start, list);
}

void attention_mask(const AttentionDescription& d, const std::int32_t* document_start, std::int64_t samples, void* mask,
                    Stream& stream) {
  dispatch(d.dtype, [&]<typename T>(T*) {
    if constexpr (sizeof(T) == 2)
      launch(write_mask<T>,
             {.blocks = static_cast<unsigned>(samples * d.sequence),
              .threads = kMaskThreads,
              .work = {.kind = "packs", .bytes = moved_bytes(1, samples * d.sequence, d.sequence, sizeof(T))}},
             stream, document_start, static_cast<T*>(mask), static_cast<int>(d.sequence), static_cast<int>(d.window));
  });
}

std::size_t attention_backward_workspace_bytes(const AttentionDescription& d) {
  return static_cast<std::size_t>(d.batch * d.heads * d.sequence) * sizeof(float);
}

void attention_backward(const AttentionDescription& d, const Attention::Backward& args, const float* log_sum_exp,
                        float* delta, const AttentionCondition& condition, Stream& stream) {
  dispatch_tiles(d, [&](auto* type, auto dim) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto sizes = sizes_of<T, dim()>(d, args.qkv, args.document_start, condition);
    const std::int64_t n_rows = d.batch * d.sequence * d.heads;
    const auto* const dy = static_cast<const T*>(args.dy);
    launch(sum_delta<T>,
           {.blocks = static_cast<unsigned>((n_rows + kThreads / 32 - 1) / (kThreads / 32)), .threads = kThreads},
           stream, static_cast<const T*>(args.y), dy, delta, n_rows, sizes);
    const auto grid = [&](int heads) {
      return Grid{.blocks = static_cast<unsigned>(sizes.n_tiles * heads),
                  .threads = kThreads,
                  .blocks_y = static_cast<unsigned>(d.batch)};
    };
    launch(dq_tile<T, dim()>, grid(sizes.heads), stream, sizes, dy, log_sum_exp, static_cast<const float*>(delta),
           static_cast<T*>(args.dqkv));
    launch(dk_dv_tile<T, dim()>, grid(sizes.kv_heads), stream, sizes, dy, log_sum_exp, static_cast<const float*>(delta),
           static_cast<T*>(args.dqkv));
  });
}

}  // namespace lockstep::cuda
