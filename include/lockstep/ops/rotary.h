// Rotary position embedding (Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, equation
// 34) of queries and keys, which are in one matrix with the values. A row of x is
//     [query heads | key heads | value heads], each head of head_dim = d numbers.
// A head of a query or key consists of d/2 pairs. Pair i is rotated by the angle p * frequency_i, where p is the
// position of the row:
//     y_first = x_first * cos - x_second * sin,  y_second = x_second * cos + x_first * sin
// Pair i consists of numbers i and i + d/2 (half_split, Hugging Face), or 2i and 2i + 1 (interleaved, the paper and
// llama2.c). Values are copied, or stay where they are if y is x. cos and sin come from a table (rotary_table), which
// is computed in double, so that angles of thousands of turns are exact, and which can contain a factor for attention
// (YaRN).
//
// With `norm`, each query head and each key head is first normalised (Qwen3): n = x / sqrt(mean of x^2 + epsilon), and
// n * q_norm or n * k_norm, (d) each, is rotated; with weight_offset (Gemma), that is added to q_norm and k_norm.
//
// Backward rotates by the opposite angles:
//     dz = dy rotated back (dx without norm),  dn = dz * q_norm,  dx = (dn - n * mean of dn * n) / sqrt(...),
//     dq_norm = sum over rows and query heads of dz * n; and likewise for keys
// The order of sums depends on the shape alone, so the bits do not depend on the number of threads.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/op.h"

namespace lockstep {

enum class RotaryPairs : std::uint8_t { half_split, interleaved };
constexpr std::string_view name(RotaryPairs pairs) {
  return pairs == RotaryPairs::half_split ? "half-split" : "interleaved";
}

struct RotaryDescription {
  using Op = class Rotary;
  static constexpr std::string_view kName = "rotary";
  static constexpr std::int64_t kMaxHeadDim = 256;

  std::int64_t rows = 0;  // positions of all samples
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;       // d: even, at most kMaxHeadDim
  std::int64_t max_positions = 0;  // rows of the table
  RotaryPairs pairs = RotaryPairs::half_split;
  bool norm = false;
  float epsilon = 1e-6f;      // of the norms
  float weight_offset = 0;    // of the norms
  DType dtype = DType::fp32;  // of x, y and their gradients
  bool inference = false;     // backward is never called

  std::int64_t row_size() const { return (heads + 2 * kv_heads) * head_dim; }
};

/// (max_positions, 2, d/2): the cosines and then the sines of each position, times `factor`. There are d/2 frequencies,
/// in radians per position.
inline std::vector<float> rotary_table(std::span<const double> frequencies, double factor, std::int64_t max_positions) {
  std::vector<float> table;
  table.reserve(2 * frequencies.size() * static_cast<std::size_t>(max_positions));
  for (std::int64_t position = 0; position < max_positions; ++position) {
    for (const double f : frequencies)
      table.push_back(static_cast<float>(factor * std::cos(static_cast<double>(position) * f)));
    for (const double f : frequencies)
      table.push_back(static_cast<float>(factor * std::sin(static_cast<double>(position) * f)));
  }
  return table;
}

/// Throws op_description for sizes that no backend can have.
inline void require_possible(const RotaryDescription& d) {
  require(d.rows > 0 && d.heads > 0 && d.kv_heads > 0 && d.max_positions > 0, ErrorCode::op_description,
          "a rotary embedding of {} rows of {} query and {} key heads at {} positions: each must be positive", d.rows,
          d.heads, d.kv_heads, d.max_positions);
  require(d.head_dim > 0 && d.head_dim % 2 == 0 && d.head_dim <= RotaryDescription::kMaxHeadDim,
          ErrorCode::op_description,
          "a rotary embedding of heads of {} elements: the number must be even, and at most {}", d.head_dim,
          RotaryDescription::kMaxHeadDim);
}

struct RotaryCalls {
  struct Forward {
    const void* x = nullptr;                  // (rows, row_size)
    const std::int32_t* positions = nullptr;  // (rows); clamped to the positions of the table
    const float* table = nullptr;             // (max_positions, 2, head_dim / 2)
    const float* q_norm = nullptr;            // (head_dim); null without norm
    const float* k_norm = nullptr;            // (head_dim)
    void* y = nullptr;                        // (rows, row_size), overwritten; may be x if backward does not read that
  };
  struct Backward {
    const void* dy = nullptr;  // (rows, row_size)
    const void* x = nullptr;   // of forward; read only with norm
    const std::int32_t* positions = nullptr;
    const float* table = nullptr;
    const float* q_norm = nullptr;
    const float* k_norm = nullptr;
    void* dx = nullptr;  // (rows, row_size); may be dy
    GradientMode dx_mode = GradientMode::overwrite;
    float* dq_norm = nullptr;  // (head_dim)
    GradientMode dq_norm_mode = GradientMode::overwrite;
    float* dk_norm = nullptr;  // (head_dim)
    GradientMode dk_norm_mode = GradientMode::overwrite;
  };
};

class Rotary : public TwoWayOp<RotaryDescription, RotaryCalls> {};

}  // namespace lockstep
