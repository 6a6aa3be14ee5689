// Kernels of cached_attention.cpp for one instruction set (each_isa.h).
#include "kernels/cpu/base/lane_sums.h"

namespace lockstep::cpu::LOCKSTEP_ISA {

/// scores[i][s] = q_i . k_s for kN queries, which are `width` apart, and at most kLanes keys: a key is read once for
/// all queries. The scores after the last key are undefined.
template <int kN, typename E>
inline void score_queries(const float* q, std::int64_t width, const E* const* keys, std::int64_t n_keys, std::int64_t n,
                          float* scores, std::int64_t stride) {
  Floats products[kN][kLanes] = {};
  const std::int64_t in_vectors = n / kLanes * kLanes;
  for (std::int64_t s = 0; s < n_keys; ++s) {
    Floats sums[kN] = {};
    for (std::int64_t c = 0; c < in_vectors; c += kLanes) {
      const Floats key = load<Floats>(keys[s] + c);
      for (int i = 0; i < kN; ++i) sums[i] += load<Floats>(q + i * width + c) * key;
    }
    for (int i = 0; i < kN; ++i) products[i][s] = sums[i];
  }
  for (int i = 0; i < kN; ++i) store(scores + i * stride, lanes_totals(products[i]));
  for (std::int64_t c = in_vectors; c < n; ++c)
    for (std::int64_t s = 0; s < n_keys; ++s)
      for (int i = 0; i < kN; ++i) scores[i * stride + s] += q[i * width + c] * to_float(keys[s][c]);
}

/// sums_i += p_i * v for kN queries and kVectors vectors of columns over the `n_keys` keys of a block.
template <int kN, int kVectors, typename E>
inline void add_values(const float* p, const E* const* values, std::int64_t n_keys, std::int64_t column, float* sums,
                       std::int64_t width) {
  Floats total[kN][kVectors];
  for (int i = 0; i < kN; ++i)
    for (int j = 0; j < kVectors; ++j) total[i][j] = load<Floats>(sums + i * width + column + j * kLanes);
  for (std::int64_t s = 0; s < n_keys; ++s) {
    Floats v[kVectors];
    for (int j = 0; j < kVectors; ++j) v[j] = load<Floats>(values[s] + column + j * kLanes);
    for (int i = 0; i < kN; ++i)
      for (int j = 0; j < kVectors; ++j) total[i][j] += p[i * kCacheBlock + s] * v[j];
  }
  for (int i = 0; i < kN; ++i)
    for (int j = 0; j < kVectors; ++j) store(sums + i * width + column + j * kLanes, total[i][j]);
}

/// Calls f(std::integral_constant<int, n>, first) for groups of at most 4 of `n_queries` queries.
template <typename F>
inline void in_groups(std::int64_t n_queries, const F& f) {
  std::int64_t i = 0;
  for (; i + 4 <= n_queries; i += 4) f(std::integral_constant<int, 4>{}, i);
  if (n_queries - i == 3) f(std::integral_constant<int, 3>{}, i);
  if (n_queries - i == 2) f(std::integral_constant<int, 2>{}, i);
  if (n_queries - i == 1) f(std::integral_constant<int, 1>{}, i);
}

/// Continues the softmax of the queries of one key-value head of one token with a block of keys.
template <typename E>
void attend_to_block(const CachedAttentionDescription& d, const E* const* keys, const E* const* values,
                     std::int64_t n_keys, const CachedAttentionScratch& scratch) {
  const std::int64_t group = d.group(), n = d.head_dim, width = scratch.width;
  in_groups(group, [&](auto count, std::int64_t first) {
    for (std::int64_t s = 0; s < n_keys; s += kLanes)
      score_queries<count.value>(scratch.q + first * width, width, keys + s, n_keys - s < kLanes ? n_keys - s : kLanes,
                                 n, scratch.scores + first * kCacheBlock + s, kCacheBlock);
  });
  for (std::int64_t i = 0; i < group; ++i) {
    float* const scores = scratch.scores + i * kCacheBlock;
    float greatest = scratch.greatest[i];
    for (std::int64_t s = 0; s < n_keys; ++s) greatest = scores[s] > greatest ? scores[s] : greatest;
    const float factor = exponential(scratch.greatest[i] - greatest);
    for (std::int64_t s = n_keys; s < kCacheBlock; ++s) scores[s] = greatest;
    for (std::int64_t s = 0; s < kCacheBlock; s += kLanes)
      store(scores + s, exponential(load<Floats>(scores + s) - greatest));
    for (std::int64_t s = n_keys; s < kCacheBlock; ++s) scores[s] = 0;
    Floats total{};
    for (std::int64_t s = 0; s < kCacheBlock; s += kLanes) total += load<Floats>(scores + s);
    scratch.total[i] = scratch.total[i] * factor + lanes_total(total);
    scratch.greatest[i] = greatest;
    float* const sums = scratch.sums + i * width;
    if (factor != 1.0f)
      for (std::int64_t c = 0; c < n; ++c) sums[c] *= factor;
  }
  in_groups(group, [&](auto count, std::int64_t first) {
    float* const sums = scratch.sums + first * width;
    const float* const p = scratch.scores + first * kCacheBlock;
    std::int64_t c = 0;
    for (; c + 4 * kLanes <= n; c += 4 * kLanes) add_values<count.value, 4>(p, values, n_keys, c, sums, width);
    for (; c + kLanes <= n; c += kLanes) add_values<count.value, 1>(p, values, n_keys, c, sums, width);
    for (; c < n; ++c)
      for (std::int64_t s = 0; s < n_keys; ++s)
        for (int i = 0; i < count.value; ++i) sums[i * width + c] += p[i * kCacheBlock + s] * to_float(values[s][c]);
  });
}

/// Items are (token, key-value head), in this order.
template <typename E>
void cached_attention(const CachedAttentionTask<E>& task, Range items, const CachedAttentionScratch& scratch) {
  const CachedAttentionDescription& d = task.d;
  const std::int64_t n = d.head_dim, group = d.group();
  const float scale = d.score_scale();
  for (std::int64_t item = items.begin; item < items.end; ++item) {
    const std::int64_t row = item / d.kv_heads, head = item % d.kv_heads;
    E* const y = static_cast<E*>(task.args.y) + (row * d.heads + head * group) * n;
    if (!task.exists(row)) {
      std::memset(static_cast<void*>(y), 0, static_cast<std::size_t>(group * n) * sizeof(E));
      continue;
    }
    const E* const q = task.packed(row) + head * group * n;
    for (std::int64_t i = 0; i < group; ++i) {
      for (std::int64_t c = 0; c < n; ++c) {
        scratch.q[i * scratch.width + c] = to_float(q[i * n + c]) * scale;
        scratch.sums[i * scratch.width + c] = 0;
      }
      scratch.greatest[i] = -__builtin_inff();
      scratch.total[i] = 0;
    }
    const std::int64_t own = task.args.slot[row], n_keys = task.args.position[row] + 1;
    const std::int32_t* const cache_indirection = task.args.cache_indirection + own * d.capacity;
    const E* keys[kCacheBlock];
    const E* values[kCacheBlock];
    const std::int64_t least = d.window > 0 && n_keys > d.window ? n_keys - d.window : 0;
    for (std::int64_t first = least; first < n_keys; first += kCacheBlock) {
      const std::int64_t count = n_keys - first < kCacheBlock ? n_keys - first : kCacheBlock;
      for (std::int64_t s = 0; s < count; ++s) {
        const std::int64_t given = cache_indirection[first + s];
        const bool is_own = first + s == n_keys - 1 || given < 0 || given >= d.slots;
        keys[s] = task.key(is_own ? own : given, head, first + s);
        values[s] = keys[s] + d.cached_elements();
      }
      attend_to_block(d, keys, values, count, scratch);
    }
    for (std::int64_t i = 0; i < group; ++i)
      for (std::int64_t c = 0; c < n; ++c)
        y[i * n + c] = from_float<E>(scratch.sums[i * scratch.width + c] / scratch.total[i]);
  }
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA
