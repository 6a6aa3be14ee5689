// Low-rank adapters beside a matmul (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2022). The result
// y (M, out) of the matmul is divided into parts, which are ranges of columns (such as q, k and v of one matrix). A
// part may have an adapter: A (rank, in) and B (columns of the part, rank). With the input x (M, in) of the matmul, for
// each part with an adapter
//     y_part += scale * h B^T,  h = drop(x) A^T
//     dh = scale * dy_part B,  dA = dh^T drop(x),  dB = scale * dy_part^T h,  dx += drop'(dh A)
// The matrices A of all parts are stacked into one matrix (parts * rank, in), and the matrices B into one matrix (sum
// of the columns, rank). Nothing is kept for backward, which recomputes h at rank / out of the cost of the matmul.
//
// Without dropout, drop(x) is x. In training with a dropout probability p > 0, drop(x) sets a fraction p of the
// elements of x to zero and divides all others by 1 - p, independently for each part. Element i of token t of sample s
// is kept if
//     bits >= threshold,  threshold = round(65536 p), at most 65535,  1 - p = 1 - threshold / 65536
// where bits is number i % 8 of the eight 16-bit halves (the lower half of each word first) of the Philox block with
// the key (seed, dropout) and the counter (t * ceil(in / 8) + i / 8, stream of the part, s, epoch). The kept elements
// thus depend neither on ranks nor on micro-batches.
//
// x, A, B, y, dy and dx have one type, to which h and dh are rounded. dA, dB and all sums are fp32.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/op.h"
#include "lockstep/ops/step_scalars.h"
#include "lockstep/philox.h"

namespace lockstep {

/// Columns of y that have an adapter.
struct LoraPart {
  std::int64_t begin = 0, columns = 0;
  std::uint32_t stream = 0;  // for the random numbers of its dropout: the hash of its name
};

struct LoraDescription {
  using Op = class Lora;
  static constexpr std::string_view kName = "lora";

  std::int64_t rows = 0;  // M
  std::int64_t in_features = 0, out_features = 0;
  std::int64_t rank = 0;
  std::vector<LoraPart> parts{};  // ascending, at least one
  float scale = 1;
  DType dtype = DType::fp32;
  bool tf32 = false;        // fp32 may be rounded to tf32 inside the multiply
  double dropout = 0;       // p; inference: none
  std::uint32_t seed = 0;   // of the dropout
  std::int64_t tokens = 1;  // rows of a sample
  bool inference = false;

  bool drops() const { return dropout > 0 && !inference; }
  std::int64_t ranks() const { return rank * static_cast<std::int64_t>(parts.size()); }  // rows of A
  std::int64_t columns() const {                                                         // rows of B
    std::int64_t n = 0;
    for (const LoraPart& part : parts) n += part.columns;
    return n;
  }
};

/// Which elements a dropout keeps. The same in all backends.
struct LoraDropout {
  static constexpr std::int64_t kPerBlock = 8;  // elements of a block of Philox

  std::uint32_t seed = 0, threshold = 0;  // of 65536
  std::int64_t tokens = 1, blocks = 0;    // rows of a sample; blocks of a row
  float keep_scale = 1;                   // 1 / (1 - p)

  static LoraDropout of(const LoraDescription& d) {
    const auto threshold = std::min(static_cast<std::uint32_t>(65536 * d.dropout + 0.5), 65535u);
    return {.seed = d.seed,
            .threshold = threshold,
            .tokens = d.tokens,
            .blocks = (d.in_features + kPerBlock - 1) / kPerBlock,
            .keep_scale = 65536.0f / static_cast<float>(65536 - threshold)};
  }
  /// Bit j: element 8 * block + j of a row is kept.
  constexpr std::uint32_t kept(std::int64_t row, std::int64_t block, std::uint32_t sample, std::uint32_t stream,
                               std::uint32_t epoch) const {
    const auto index = static_cast<std::uint32_t>(row % tokens * blocks + block);
    const std::array<std::uint32_t, 4> bits =
        philox4x32({index, stream, sample, epoch}, {seed, static_cast<std::uint32_t>(RandomPurpose::dropout)});
    std::uint32_t mask = 0;
    for (std::size_t word = 0; word < 4; ++word) {
      mask |= ((bits[word] & 0xffffu) >= threshold ? 1u : 0u) << (2 * word);
      mask |= ((bits[word] >> 16) >= threshold ? 1u : 0u) << (2 * word + 1);
    }
    return mask;
  }
};

/// Throws op_description unless the sizes are possible.
inline void require_possible(const LoraDescription& d) {
  require(d.rows > 0 && d.in_features > 0 && d.rank > 0 && !d.parts.empty(), ErrorCode::op_description,
          "an adapter of rank {} for {} rows of {} elements with {} parts: all must be positive", d.rank, d.rows,
          d.in_features, d.parts.size());
  std::int64_t end = 0;
  for (const LoraPart& part : d.parts) {
    require(part.begin >= end && part.columns > 0 && part.begin + part.columns <= d.out_features,
            ErrorCode::op_description, "an adapter for columns {} to {} of {}, after those up to {}", part.begin,
            part.begin + part.columns, d.out_features, end);
    end = part.begin + part.columns;
  }
  require(d.dropout >= 0 && d.dropout < 1 && (!d.drops() || (d.tokens > 0 && d.rows % d.tokens == 0)),
          ErrorCode::op_description, "a dropout of {} for {} rows in samples of {}", d.dropout, d.rows, d.tokens);
}

struct LoraCalls {
  /// Inputs of the dropout; not read without dropout.
  struct Samples {
    const std::uint32_t* ids = nullptr;    // (M / tokens)
    const StepScalars* scalars = nullptr;  // epoch
  };
  struct Forward {
    const void* x = nullptr;  // (M, in)
    const void* a = nullptr;  // (parts * rank, in)
    const void* b = nullptr;  // (columns of all parts, rank)
    void* y = nullptr;        // (M, out), added to; columns without an adapter are not changed
    Samples samples{};
  };
  struct Backward {
    const void* dy = nullptr;  // (M, out)
    const void* x = nullptr;
    const void* a = nullptr;
    const void* b = nullptr;
    void* dx = nullptr;                                     // (M, in), added to; null: skipped
    float* da = nullptr;                                    // (parts * rank, in)
    float* db = nullptr;                                    // (columns of all parts, rank)
    GradientMode parameter_mode = GradientMode::overwrite;  // of da and db
    Samples samples{};
  };
};

class Lora : public TwoWayOp<LoraDescription, LoraCalls> {};

}  // namespace lockstep
