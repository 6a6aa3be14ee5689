// Matrices in NF4 with double quantisation (Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023, as
// bitsandbytes stores them): the elements of a row-major matrix (rows, in) form blocks of 64. Each element is a 4-bit
// index into kNf4Values, and is multiplied by the scale of its block. The scales are stored in 8 bits, in blocks of
// 256:
//     element e:  kNf4Values[code of e] * scale(e / 64)
//     scale b:    scale_values[scale code of b] * scale_of_scales[b / 256] + offset
// This takes 1/2 + 1/64 + 4 / (64 * 256) bytes per element. Products and sums are fp32, each rounded once.
//
// A parameter can have several such matrices (q, k and v), each with its own blocks, one after another:
//     [codes, two in a byte, the first in its upper half][scale codes][scales of scales, fp32][offset, fp32]
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

inline constexpr std::int64_t kNf4Block = 64, kNf4ScaleBlock = 256;
inline constexpr int kNf4ScaleValues = 256;
/// Quantiles of the normal distribution, from -1 to 1.
inline constexpr float kNf4Values[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

/// One of the matrices of a parameter. Offsets are in bytes from the beginning of the parameter, and multiples of 4.
struct Nf4Matrix {
  std::int64_t first_row = 0, rows = 0;  // of the parameter
  std::size_t codes = 0, scale_codes = 0, scales_of_scales = 0, offset = 0;
};

struct Nf4Layout {
  std::int64_t in_features = 0;
  std::vector<Nf4Matrix> matrices{};
  std::size_t size_bytes = 0;

  /// `rows`: the number of rows of each matrix.
  static Nf4Layout of(std::span<const std::int64_t> rows, std::int64_t in_features) {
    Nf4Layout out{.in_features = in_features};
    std::int64_t first_row = 0;
    const auto take = [&](std::int64_t n_bytes) {
      const std::size_t at = out.size_bytes;
      out.size_bytes += (static_cast<std::size_t>(n_bytes) + 3) / 4 * 4;
      return at;
    };
    for (const std::int64_t n_rows : rows) {
      const std::int64_t n = n_rows * in_features, blocks = n_blocks(n);
      Nf4Matrix matrix{.first_row = first_row, .rows = n_rows};
      matrix.codes = take((n + 1) / 2);
      matrix.scale_codes = take(blocks);
      matrix.scales_of_scales = take(4 * ((blocks + kNf4ScaleBlock - 1) / kNf4ScaleBlock));
      matrix.offset = take(4);
      out.matrices.push_back(matrix);
      first_row += n_rows;
    }
    return out;
  }
  static constexpr std::int64_t n_blocks(std::int64_t n_elements) { return (n_elements + kNf4Block - 1) / kNf4Block; }
};

}  // namespace lockstep
