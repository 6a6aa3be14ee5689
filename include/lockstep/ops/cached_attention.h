// Causal attention of new tokens over a cache of the keys and values of earlier ones, for generating text. The new
// tokens may belong to any sequences: token r is at position p = position[r] of the sequence in slot n = slot[r]. With
// head h of q and the key-value head g = h / (heads / kv_heads), the op first stores
//     k_cache[n, g, p] = k[r, g],  v_cache[n, g, p] = v[r, g]
// and then computes, over the positions s from 0 to p of that sequence (with a window, those above p - window), whose
// key and value are in slot m = cache_indirection[n, s]
//     score[s] = scale * q[r, h] . k_cache[m, g, s],  y[r, h] = sum over s of softmax(score)[s] * v_cache[m, g, s]
// This way, several sequences can share a prefix, and beams can change places without copying the cache (NVIDIA's
// FasterTransformer uses the same name). With one slot, a whole sequence in one call, and cache_indirection[0, s] = 0,
// this computes what the op `attention` does.
//
// q, k and v are one packed matrix, as the op `rotary` writes it (lockstep/ops/attention.h). The cache is
// (2, slots, kv_heads, capacity, head_dim), the keys and then the values, in the type of q. All new tokens are stored
// before any attends, and several tokens of a call may follow each other in one sequence. Two tokens of a call must not
// have the same slot and position. A token whose position or slot does not exist is padding: nothing is stored for it,
// and its y is zero. Sums are fp32. The bits of a token's y depend on its own q and on the keys and values that it
// attends to, not on the other tokens of the call.
#pragma once

#include <cmath>
#include <string>

#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/op.h"
#include "lockstep/ops/attention.h"

namespace lockstep {

struct CachedAttentionDescription {
  using Op = class CachedAttention;
  static constexpr std::string_view kName = "cached_attention";

  std::int64_t rows = 0;      // new tokens of a call
  std::int64_t slots = 0;     // sequences that the cache has room for
  std::int64_t capacity = 0;  // tokens per sequence
  std::int64_t heads = 0;     // of q
  std::int64_t kv_heads = 0;  // of k and of v
  std::int64_t head_dim = 0;
  DType dtype = DType::fp32;  // of qkv, the cache and y
  float scale = 0;            // of the scores; 0: 1 / sqrt(head_dim)
  std::int64_t window = 0;    // positions that a token attends to, its own included; 0: all

  std::int64_t group() const { return heads / kv_heads; }
  /// Elements of a token in the packed matrix.
  std::int64_t packed_width() const { return (heads + 2 * kv_heads) * head_dim; }
  /// Elements of the keys alone, or of the values alone.
  std::int64_t cached_elements() const { return slots * kv_heads * capacity * head_dim; }
  std::size_t cache_bytes() const { return 2 * static_cast<std::size_t>(cached_elements()) * size_bytes(dtype); }
  float score_scale() const { return scale != 0 ? scale : 1.0f / std::sqrt(static_cast<float>(head_dim)); }
};

/// "cached attention of 8 tokens, 8 sequences of 1024, 9 heads, 3 of keys and values, of 64, bf16"
inline std::string text(const CachedAttentionDescription& d) {
  return fmt::format("cached attention of {} tokens, {} sequences of {}, {} heads, {} of keys and values, of {}, {}{}",
                     d.rows, d.slots, d.capacity, d.heads, d.kv_heads, d.head_dim, name(d.dtype),
                     d.window > 0 ? fmt::format(", window {}", d.window) : "");
}

inline void require_possible(const CachedAttentionDescription& d) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  require(
      d.rows > 0 && d.slots > 0 && d.capacity > 0 && d.heads > 0 && d.kv_heads > 0 && d.head_dim > 0 && d.window >= 0,
      ErrorCode::op_description, "{}: all sizes must be positive", text(d));
  require(d.rows < kLimit && d.slots < kLimit && d.capacity < kLimit, ErrorCode::op_description,
          "{}: tokens, sequences and their length must be below 2^31", text(d));
  require(d.heads % d.kv_heads == 0, ErrorCode::op_description,
          "{}: the number of query heads must be a multiple of the number of key-value heads", text(d));
  require(d.head_dim <= AttentionDescription::kMaxHeadDim, ErrorCode::op_description,
          "{}: a head may have at most {} elements", text(d), AttentionDescription::kMaxHeadDim);
}

struct CachedAttentionCalls {
  struct Forward {
    const void* qkv = nullptr;               // (rows, packed_width())
    const std::int32_t* slot = nullptr;      // (rows)
    const std::int32_t* position = nullptr;  // (rows)
    /// (slots, capacity). Read only for positions before a token's own, since the token itself is always in its own
    /// slot. An entry that is not an existing slot counts as the sequence's own slot.
    const std::int32_t* cache_indirection = nullptr;
    void* cache = nullptr;  // cache_bytes(), updated
    void* y = nullptr;      // (rows, heads * head_dim), overwritten
  };
};

class CachedAttention : public ForwardOp<CachedAttentionDescription, CachedAttentionCalls> {};

}  // namespace lockstep
