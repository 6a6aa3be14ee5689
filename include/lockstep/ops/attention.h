// Causal attention within documents, with grouped queries (Vaswani et al., "Attention Is All You Need", 2017, equation
// 1; Ainslie et al., "GQA", 2023), computed in tiles, so that the matrix of scores never exists (Dao,
// "FlashAttention-2", 2023, algorithms 1 and 2). For token t of a row, head h, and the key-value head g = h / (heads /
// kv_heads):
//     score[s] = scale * q[t, h] . k[s, g],  for the tokens s of t's document up to t: document_start[t] <= s <= t,
//         and with a window (Jiang et al., "Mistral 7B", 2023, section 2) only the last of them: t - window < s
//     p = softmax(score),  y[t, h] = sum over s of p[s] * v[s, g]
// Backward, with delta = y[t, h] . dy[t, h]:
//     dscore[s] = p[s] * (dy[t, h] . v[s, g] - delta)
//     dq[t, h] = scale * sum over s of dscore[s] * k[s, g]
//     dk[s, g] = scale * sum over t, h of dscore[s] * q[t, h],  dv[s, g] = sum over t, h of p[s] * dy[t, h]
// Forward saves log(sum over s of exp(score[s])) of each (sample, head, token), in fp32.
//
// q, k and v are one packed matrix, (batch, sequence, (heads + 2 * kv_heads) * head_dim). For each token, it has first
// all heads of q, then those of k, then those of v, as the op `rotary` writes them. Its gradient has the same layout.
// Sums are fp32. On the CPU, the order of sums depends on the description alone, so results have the same bits in every
// run. On a GPU, the gradients have the same bits in every run only if algorithms are fixed (`reproducible`).
#pragma once

#include <cmath>
#include <string>

#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/op.h"

namespace lockstep {

struct AttentionDescription {
  using Op = class Attention;
  static constexpr std::string_view kName = "attention";
  static constexpr std::int64_t kMaxHeadDim = 256;

  std::int64_t batch = 0;
  std::int64_t sequence = 0;  // tokens of each sample
  std::int64_t heads = 0;     // of q
  std::int64_t kv_heads = 0;  // of k and of v
  std::int64_t head_dim = 0;
  DType dtype = DType::fp32;  // of qkv, y and their gradients
  float scale = 0;            // of the scores; 0: 1 / sqrt(head_dim)
  std::int64_t window = 0;    // tokens that a token attends to, itself included; 0: all
  bool documents = false;     // calls pass document_start; otherwise a sample is one document
  bool inference = false;     // backward is never called

  std::int64_t group() const { return heads / kv_heads; }
  /// Elements of a token in the packed matrix.
  std::int64_t packed_width() const { return (heads + 2 * kv_heads) * head_dim; }
  float score_scale() const { return scale != 0 ? scale : 1.0f / std::sqrt(static_cast<float>(head_dim)); }
};

/// "attention (8, 1024), 9 heads, 3 of keys and values, of 64, bf16"
inline std::string text(const AttentionDescription& d) {
  return fmt::format("attention ({}, {}), {} heads, {} of keys and values, of {}, {}{}", d.batch, d.sequence, d.heads,
                     d.kv_heads, d.head_dim, name(d.dtype), d.window > 0 ? fmt::format(", window {}", d.window) : "");
}

inline void require_possible(const AttentionDescription& d) {
  require(d.batch > 0 && d.sequence > 0 && d.heads > 0 && d.kv_heads > 0 && d.head_dim > 0 && d.window >= 0,
          ErrorCode::op_description, "{}: all sizes must be positive", text(d));
  require(d.heads % d.kv_heads == 0, ErrorCode::op_description,
          "{}: the number of query heads must be a multiple of the number of key-value heads", text(d));
  require(d.head_dim <= AttentionDescription::kMaxHeadDim, ErrorCode::op_description,
          "{}: a head may have at most {} elements", text(d), AttentionDescription::kMaxHeadDim);
}

struct AttentionCalls {
  struct Forward {
    const void* qkv = nullptr;  // (batch, sequence, packed_width())
    /// (batch, sequence): for each token, the index of the first token of its document within the sample. It is at most
    /// the token's own index and never decreases. Null without documents.
    const std::int32_t* document_start = nullptr;
    void* y = nullptr;  // (batch, sequence, heads * head_dim), overwritten
  };
  struct Backward {
    const void* qkv = nullptr;
    const std::int32_t* document_start = nullptr;
    const void* y = nullptr;   // of forward
    const void* dy = nullptr;  // (batch, sequence, heads * head_dim)
    void* dqkv = nullptr;      // (batch, sequence, packed_width()), overwritten; not the memory of another argument
  };
};

class Attention : public TwoWayOp<AttentionDescription, AttentionCalls> {};

}  // namespace lockstep
