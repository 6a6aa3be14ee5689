// Kernels of own_product.cpp for one instruction set (each_isa.h).

namespace lockstep::cpu::LOCKSTEP_ISA {

// A tile of sums: its vectors, two of b and one of a fill the registers. AVX-512 and NEON have 32, and the others 16.
#if LOCKSTEP_LANES == 16 || defined(__aarch64__)
inline constexpr int kTileRows = 12;
#else
inline constexpr int kTileRows = 6;
#endif
inline constexpr int kTileVectors = 2, kTileColumns = kTileVectors * kLanes;

inline std::int64_t product_tile_columns() { return kTileColumns; }

/// Panels of kPanel rows or columns, (inner, kPanel) each; the last one is filled up with zeros.
template <int kPanel, typename E>
inline void pack_panels(const MatrixPart<E>& from, float* to) {
  for (std::int64_t first = 0; first < from.outer; first += kPanel, to += kPanel * from.inner) {
    const std::int64_t n = from.outer - first < kPanel ? from.outer - first : kPanel;
    const E* const panel = from.data + first * from.outer_stride;
    if (n < kPanel) std::memset(to, 0, static_cast<std::size_t>(kPanel * from.inner) * sizeof(float));
    if (from.inner_stride == 1) {
      for (std::int64_t o = 0; o < n; ++o)
        for (std::int64_t i = 0; i < from.inner; ++i) to[i * kPanel + o] = to_float(panel[o * from.outer_stride + i]);
    } else if (n == kPanel && kPanel % kLanes == 0) {
      for (std::int64_t i = 0; i < from.inner; ++i)
        for (int o = 0; o < kPanel; o += kLanes)
          store(to + i * kPanel + o, load<Floats>(panel + i * from.inner_stride + o));
    } else {
      for (std::int64_t i = 0; i < from.inner; ++i)
        for (std::int64_t o = 0; o < n; ++o) to[i * kPanel + o] = to_float(panel[i * from.inner_stride + o]);
    }
  }
}
template <typename E>
void pack_rows(const MatrixPart<E>& from, float* to) {
  pack_panels<kTileRows>(from, to);
}
template <typename E>
void pack_columns(const MatrixPart<E>& from, float* to) {
  pack_panels<kTileColumns>(from, to);
}

/// A tile of c (kTileRows, kTileColumns) += a panel of a * a panel of b, which is summed first.
inline void multiply_tile(const float* a, const float* b, std::int64_t n_inner, float* c, std::int64_t c_row) {
  Floats sums[kTileRows][kTileVectors] = {};
  for (std::int64_t i = 0; i < n_inner; ++i, a += kTileRows, b += kTileColumns) {
    const Floats left = load<Floats>(b), right = load<Floats>(b + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      sums[r][0] += a[r] * left;
      sums[r][1] += a[r] * right;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kTileVectors; ++v) {
      float* const to = c + r * c_row + v * kLanes;
      store(to, load<Floats>(to) + sums[r][v]);
    }
}

/// The same for a tile at the edge of c, of which only some rows and columns exist.
inline void multiply_edge(const float* a, const float* b, const ProductBlock& block, float* c, std::int64_t rows,
                          std::int64_t columns) {
  float tile[kTileRows * kTileColumns] = {};
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(tile + r * kTileColumns, c + r * block.c_row, static_cast<std::size_t>(columns) * sizeof(float));
  multiply_tile(a, b, block.n_inner, tile, kTileColumns);
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(c + r * block.c_row, tile + r * kTileColumns, static_cast<std::size_t>(columns) * sizeof(float));
}

inline void multiply_block(const ProductBlock& block) {
  for (std::int64_t column = 0; column < block.columns; column += kTileColumns)
    for (std::int64_t row = 0; row < block.rows; row += kTileRows) {
      const float* const a = block.a + row * block.n_inner;
      const float* const b = block.b + column * block.n_inner;
      float* const c = block.c + row * block.c_row + column;
      const std::int64_t rows = block.rows - row, columns = block.columns - column;
      if (rows >= kTileRows && columns >= kTileColumns)
        multiply_tile(a, b, block.n_inner, c, block.c_row);
      else
        multiply_edge(a, b, block, c, rows < kTileRows ? rows : kTileRows,
                      columns < kTileColumns ? columns : kTileColumns);
    }
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA
