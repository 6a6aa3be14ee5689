// What attention.cpp and its kernels share: the sizes of tiles, and the memory that they are in.
//
// The key-value heads of all samples are numbered by `pair` = sample * kv_heads + head. The keys of a pair are cut into
// blocks of kKeys tokens, and its queries into units of a few tokens. A unit has a row for each (token, head of the
// group), so that all query heads of a key-value head share its tiles.
//
// Products read numbers of type N: float, or Bf16Pair, two bf16 numbers that are neighbours along the inner dimension.
// They use vector instructions. For pairs they can also use AMX, which needs larger multiples of rows and columns.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/bf16.h"
#include "lockstep/ops/attention.h"

namespace lockstep::cpu {

struct Bf16Pair {
  std::int32_t bits;  // the first number in the lower half
};
/// The types of numbers in tensors and in tiles.
template <typename E, typename N>
struct AttentionTypes {
  using Element = E;
  using Number = N;
};

inline std::int64_t round_up(std::int64_t n, std::int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

struct AttentionTiling {
  static constexpr std::int64_t kKeys = 64;  // of a block

  /// Numbers of rows and columns are padded to multiples of these.
  struct Padding {
    std::int64_t rows = 4;      // those of a product's inner loop
    std::int64_t columns = 16;  // the lanes of the widest vectors
  };
  static constexpr Padding kAmxPadding{.rows = 32, .columns = 32};  // 2 x 2 tiles of sums

  AttentionTiling(const AttentionDescription& d, std::int64_t rows_per_unit, const Padding& padded_to)
      : sequence(d.sequence),
        heads(d.heads),
        kv_heads(d.kv_heads),
        head_dim(d.head_dim),
        scale(d.score_scale()),
        padding(padded_to),
        group(d.group()),
        width(round_up(d.head_dim, padding.columns)),
        tokens(std::max<std::int64_t>(1, rows_per_unit / d.group())),
        rows(round_up(tokens * d.group(), padding.rows)),
        n_units((d.sequence + tokens - 1) / tokens),
        n_blocks((d.sequence + kKeys - 1) / kKeys) {}

  std::int64_t sequence, heads, kv_heads, head_dim;
  float scale;
  Padding padding;
  std::int64_t group;              // query heads of a key-value head
  std::int64_t width;              // head_dim, padded
  std::int64_t tokens, rows;       // of a unit; rows are padded
  std::int64_t n_units, n_blocks;  // of a pair

  std::int64_t packed_width() const { return (heads + 2 * kv_heads) * head_dim; }
};

template <typename E>
struct AttentionTask {
  AttentionTiling tiling;
  const E* qkv = nullptr;
  const std::int32_t* document_start = nullptr;  // null: each sample is one document
  std::int64_t window = 0;                       // 0: there is none
  float* log_sum_exp = nullptr;                  // (batch, heads, sequence); null: not kept
  E* y = nullptr;                                // of forward
  const E* y_of_forward = nullptr;               // of backward, as are the next
  const E* dy = nullptr;
  E* dqkv = nullptr;
};

template <typename N>
inline constexpr std::int64_t kPerNumber = 1;  // elements of a tensor
template <>
inline constexpr std::int64_t kPerNumber<Bf16Pair> = 2;

/// Hands out memory piece by piece. Without memory, it only adds up the size.
class Scratch {
 public:
  explicit Scratch(void* begin = nullptr) : begin_(reinterpret_cast<std::uintptr_t>(begin)) {}
  template <typename T>
  T* take(std::int64_t n) {
    const std::uintptr_t at = begin_ + used_;
    used_ += static_cast<std::size_t>(round_up(n * static_cast<std::int64_t>(sizeof(T)), 64));
    return reinterpret_cast<T*>(at);  // NOLINT(performance-no-int-to-ptr)
  }
  std::size_t size_bytes() const { return used_; }

 private:
  std::uintptr_t begin_;
  std::size_t used_ = 0;
};

/// Keys and values of a pair, block after block. Tiles are padded with zeros.
template <typename N>
struct AttentionKeys {
  AttentionKeys(const AttentionTiling& t, bool is_backward, Scratch& from) {
    const std::int64_t n = t.n_blocks * AttentionTiling::kKeys * t.width;
    k_transposed = from.take<N>(n / kPerNumber<N>);
    (is_backward ? v_transposed : v_rows) = from.take<N>(n / kPerNumber<N>);
    if (!is_backward) return;
    k_rows = from.take<N>(n / kPerNumber<N>);
    dk = from.take<float>(n);
    dv = from.take<float>(n);
  }
  N* k_transposed = nullptr;  // (width / numbers per N, kKeys)
  N* v_transposed = nullptr;  // the same; backward
  N* k_rows = nullptr;        // (kKeys / numbers per N, width); backward
  N* v_rows = nullptr;        // the same; forward
  float* dk = nullptr;        // (kKeys, width), sums; backward
  float* dv = nullptr;
};

/// A thread's memory for a unit of queries.
template <typename N>
struct ForwardScratch {
  explicit ForwardScratch(const AttentionTiling& t, Scratch& from)
      : q(from.take<N>(t.rows * t.width / kPerNumber<N>)),
        scores(from.take<float>(t.rows * AttentionTiling::kKeys)),
        p(from.take<N>(kPerNumber<N> == 1 ? 0 : t.rows * AttentionTiling::kKeys / kPerNumber<N>)),
        sums(from.take<float>(t.rows * t.width)),
        greatest(from.take<float>(t.rows)),
        total(from.take<float>(t.rows)) {
    if constexpr (kPerNumber<N> == 1) p = scores;
  }
  N* q;           // (rows, width)
  float* scores;  // (rows, kKeys)
  N* p;           // (rows, kKeys); in fp32 at the address of the scores
  float* sums;    // (rows, width) of p * v
  float* greatest;
  float* total;  // of each row's exponentials
};

template <typename N>
struct BackwardScratch {
  BackwardScratch(const AttentionTiling& t, Scratch& from)
      : q(from.take<N>(t.rows * t.width / kPerNumber<N>)),
        dy(from.take<N>(t.rows * t.width / kPerNumber<N>)),
        q_of_pairs(q),
        dy_of_pairs(dy),
        scores(from.take<float>(t.rows * AttentionTiling::kKeys)),
        dp(from.take<float>(t.rows * AttentionTiling::kKeys)),
        dq(from.take<float>(t.rows * t.width)),
        delta(from.take<float>(t.rows)),
        log_sum_exp(from.take<float>(t.rows)) {
    if constexpr (kPerNumber<N> == 1) {
      p_of_pairs = scores;
      dscore_of_pairs = dscore = dp;
    } else {
      q_of_pairs = from.take<N>(t.rows / 2 * t.width);
      dy_of_pairs = from.take<N>(t.rows / 2 * t.width);
      p_of_pairs = from.take<N>(t.rows / 2 * AttentionTiling::kKeys);
      dscore_of_pairs = from.take<N>(t.rows / 2 * AttentionTiling::kKeys);
      dscore = from.take<N>(t.rows * AttentionTiling::kKeys / 2);
      transposed = from.take<N>(t.padding.rows * t.rows / 2);
    }
  }
  N *q, *dy;                                            // (rows, width), numbers along the width
  N *q_of_pairs, *dy_of_pairs;                          // (rows, width), numbers along the rows
  float *scores, *dp;                                   // (rows, kKeys)
  N *p_of_pairs = nullptr, *dscore_of_pairs = nullptr;  // (rows, kKeys), numbers along the rows
  N* dscore = nullptr;                                  // (rows, kKeys), numbers along the keys
  N* transposed = nullptr;                              // (padding of rows, rows / 2): some columns of *_of_pairs
  float* dq;                                            // (rows, width), sums
  float *delta, *log_sum_exp;
};

/// The progress of backward in one unit of a pair: the number of leading blocks of keys to which this unit and all
/// units before it have added. Each unit waits for the one before it, so that gradients of keys and values are summed
/// in one order, whichever threads compute them.
using AttentionProgress = std::atomic<std::int64_t>;

}  // namespace lockstep::cpu
