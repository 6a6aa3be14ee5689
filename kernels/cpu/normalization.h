// The passes of a pending normalisation (lockstep/ops/normalization.h): apply it, propagate gradients back through it,
// and sum a tensor per channel. Convolution and pooling are made of these on the CPU; all are bound by memory, and each
// reads its tensors once.
//
// Layouts: nhwc, rows n*hw of c channels, any c; nchw16c, (n, c/16, hw, 16), c a multiple of 16.
// Elements are fp32 or bf16, in memory; between loading and storing they are fp32. Sums over rows are taken in fp64
// from the first element on (products of two fp32 are exact there), so they carry only fp64 rounding: relative error
// below n*hw * 1.2e-16 of the sum of magnitudes. The order of summation is fixed by the shape and the number of
// threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>

#include "kernels/cpu/base/parallel.h"
#include "lockstep/dtype.h"
#include "lockstep/op.h"
#include "lockstep/ops/normalization.h"

namespace lockstep::cpu {

struct ActivationShape {
  std::int64_t n = 0;   // samples
  std::int64_t hw = 0;  // pixels of an image, H * W
  std::int64_t c = 0;   // channels
  Layout layout = Layout::nhwc;
  DType dtype = DType::fp32;  // or bf16; of all tensors of a pass
};

/// z = act(scale*x + bias [+ r | + scale2*r + bias2]) into `z`, which may be x or the residual.
void normalize(const ActivationShape& shape, const InputNormalization& normalization, const void* x,
               const NormalizationForward& args, void* z, const CpuContext& context);

/// `statistics` (2, C) fp64, overwritten: sum x, sum x^2. `workspace` of channel_sums_workspace_bytes(), 64-byte
/// aligned.
std::size_t channel_sums_workspace_bytes(const ActivationShape& shape, const CpuContext& context);
void channel_sums(const ActivationShape& shape, const void* x, double* statistics, void* workspace,
                  const CpuContext& context);

/// dz = act'(z) * (data_gradient + added) into args.dz, and args.sums, args.residual_sums from it.
/// The ReLU's mask comes from `z` if it is not null; otherwise z is recomputed from x, scale, bias and residual.
/// args.dz may be data_gradient or args.added.
std::size_t normalize_backward_workspace_bytes(const ActivationShape& shape, const CpuContext& context);
void normalize_backward(const ActivationShape& shape, const InputNormalization& normalization, const void* x,
                        const NormalizationForward& forward, const void* z, const void* data_gradient,
                        const NormalizationBackward& args, void* workspace, const CpuContext& context);

// How the passes over an activation loop over it: in tiles of some channels by some rows, so that a channel's
// coefficients and sums stay in registers. The loop itself is in normalization_tiles.h.
//   nchw16c  a tile is one (n, c/16) image: 16 channels, hw rows
//   nhwc     a tile is 64 (then 16, then 1) columns of 16 rows: narrower ones ran at a third of the speed
// In nhwc with fewer than 64 channels, `repeat` rows are taken as one row of repeat * c columns, a multiple of 16, with
// repeated coefficients, so that vectors are full.
struct Tiling {
  static constexpr std::int64_t kMaxRepeatedWidth = 1024;

  Tiling(const ActivationShape& shape, const CpuContext& context, int n_tensors) : shape(shape) {
    if (shape.layout == Layout::nhwc && shape.c < 64) repeat = 16 / std::gcd(shape.c, std::int64_t{16});
    width = shape.c * repeat;
    const std::int64_t rows = shape.n * shape.hw;
    units = shape.layout == Layout::nhwc ? (rows + repeat - 1) / repeat : shape.n * (shape.c / 16);
    parts = part_count(context, rows * shape.c * n_tensors * static_cast<std::int64_t>(size_bytes(shape.dtype)));
    if (parts > units) parts = static_cast<int>(units > 0 ? units : 1);
  }

  ActivationShape shape;
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
