// How the passes over an activation loop over it: in tiles of some channels by some rows, so that a channel's
// coefficients and sums stay in registers. The loop itself is in normalization_tiles.h.
//   nchw16c  a tile is one (n, c/16) image: 16 channels, hw rows
//   nhwc     a tile is 64 (then 16, then 1) columns of 16 rows: narrower ones ran at a third of the speed
// In nhwc with fewer than 64 channels, `repeat` rows are taken as one row of repeat * c columns, a multiple of 16, with
// repeated coefficients, so that vectors are full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/normalization.h"

namespace lockstep::cpu {

struct Tiling {
  static constexpr std::int64_t kMaxRepeatedWidth = 1024;

  Tiling(const Activation& shape, const CpuContext& context, int n_tensors) : shape(shape) {
    if (shape.layout == Layout::nhwc && shape.c < 64) repeat = 16 / std::gcd(shape.c, std::int64_t{16});
    width = shape.c * repeat;
    const std::int64_t rows = shape.n * shape.hw;
    units = shape.layout == Layout::nhwc ? (rows + repeat - 1) / repeat : shape.n * (shape.c / 16);
    parts = part_count(context, rows * shape.c * n_tensors * static_cast<std::int64_t>(size_bytes(shape.dtype)));
    if (parts > units) parts = static_cast<int>(units > 0 ? units : 1);
  }

  Activation shape;
  std::int64_t repeat = 1;
  std::int64_t width = 0;  // columns: of coefficients and sums
  std::int64_t units = 0;  // what is divided among the parts: rows of `width`, or images of 16 channels
  int parts = 1;

  /// fp64 values of one part's sums, `kinds` of them per column; whole cache lines.
  std::size_t sums_a_part(int kinds) const { return static_cast<std::size_t>((width * kinds + 7) / 8 * 8); }
  std::size_t sums_bytes(int kinds) const {
    return static_cast<std::size_t>(parts) * sums_a_part(kinds) * sizeof(double);
  }

  /// (C) coefficients as (width): the same pointer, or repeated in `buffer` (kMaxRepeatedWidth).
  const float* repeated(const float* coefficients, float* buffer) const {
    if (repeat == 1 || coefficients == nullptr) return coefficients;
    for (std::int64_t i = 0; i < width; ++i) buffer[i] = coefficients[i % shape.c];
    return buffer;
  }
  /// Channel c's sum of one kind over parts and repeats, in that order.
  double total(const double* sums, int kinds, int kind, std::int64_t c) const {
    double total = 0;
    for (int part = 0; part < parts; ++part) {
      const double* row = sums + static_cast<std::size_t>(part) * sums_a_part(kinds) + kind * width;
      for (std::int64_t i = 0; i < repeat; ++i) total += row[i * shape.c + c];
    }
    return total;
  }
};

}  // namespace lockstep::cpu
