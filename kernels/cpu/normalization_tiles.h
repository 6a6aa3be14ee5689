// The walk of a Tiling (normalization.h), for one instruction set: kernel files include this after vectors.h, so it has
// no include guard.

namespace lockstep::cpu::LOCKSTEP_ISA {

/// 16 channels as vectors of this width.
inline constexpr int kTileVectors = 16 / kLanes;

/// Prefetches the next tile, 64 columns further on. The hardware does not recognise rows far apart as a stream:
/// backward over 512 channels in nhwc, six tensors in L3, went from 19 to 33 GB/s.
template <typename E>
inline void prefetch_ahead(const E* p) {
  __builtin_prefetch(p + 64, 0, 2);
}

/// Calls body.tile<T, n_vectors>(offset of the first element, elements from row to row, rows, first column) for every
/// tile of units [range.begin, range.end).
template <typename Body>
inline void walk(const Tiling& tiling, Range range, const Body& body) {
  const ActivationShape& shape = tiling.shape;
  if (shape.layout == Layout::nchw16c) {
    for (std::int64_t unit = range.begin; unit < range.end; ++unit)
      body.template tile<Floats, kTileVectors>(unit * shape.hw * 16, 16, shape.hw, unit % (shape.c / 16) * 16);
    return;
  }
  constexpr std::int64_t kRows = 16;
  const auto row_block = [&](std::int64_t row, std::int64_t rows, std::int64_t columns) {
    std::int64_t column = 0;
    for (; column + 64 <= columns; column += 64)
      body.template tile<Floats, 4 * kTileVectors>(row * tiling.width + column, tiling.width, rows, column);
    for (; column + 16 <= columns; column += 16)
      body.template tile<Floats, kTileVectors>(row * tiling.width + column, tiling.width, rows, column);
    for (; column < columns; ++column)
      body.template tile<float, 1>(row * tiling.width + column, tiling.width, rows, column);
  };
  const std::int64_t whole_rows = shape.n * shape.hw / tiling.repeat;
  const std::int64_t end = range.end < whole_rows ? range.end : whole_rows;
  for (std::int64_t row = range.begin; row < end; row += kRows)
    row_block(row, end - row < kRows ? end - row : kRows, tiling.width);
  if (range.end > whole_rows)  // the remaining rows, fewer than `repeat`
    row_block(whole_rows, 1, shape.n * shape.hw % tiling.repeat * shape.c);
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA
