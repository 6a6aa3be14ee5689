// The kernels of conv2d_amx.cpp, always compiled for AMX and AVX-512. Included once.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/base/amx_tiles.h"
#include "kernels/cpu/base/bf16.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16,prefer-vector-width=512")

namespace lockstep::cpu::amx {

/// The addresses of a product's rows: the 32 channels of chunk i for position p are at base + p * row + i * chunk, in
/// values.
struct Rows {
  const Bf16* base = nullptr;
  std::int64_t row = 0, chunk = 0;
  Rows at(std::int64_t position, std::int64_t chunks) const {
    return {base + position * row + chunks * chunk, row, chunk};
  }
};

/// sums (32, 32) of 32 positions by 32 output channels, added to or overwritten. distances (n_taps) in bytes;
/// `columns`: two tiles for each chunk of 32 input channels and tap.
inline void row_block(const Rows& rows, const std::int64_t* distances, int n_taps, std::int64_t n_chunks,
                      const Bf16* columns, float* sums, bool add) {
  float* const tiles[4] = {sums, sums + 16, sums + 16 * 32, sums + 16 * 32 + 16};
  memory_fence();
  if (add)
    load_sums(tiles, 128);
  else
    zero_sums();
  const std::int64_t row_bytes = rows.row * static_cast<std::int64_t>(sizeof(Bf16));
  const char* from = reinterpret_cast<const char*>(rows.base);
  for (std::int64_t chunk = 0; chunk < n_chunks; ++chunk, from += rows.chunk * static_cast<std::int64_t>(sizeof(Bf16)))
    for (int tap = 0; tap < n_taps; ++tap, columns += 2 * kTile) {
      _tile_loadd(4, from + distances[tap], row_bytes);
      _tile_loadd(6, columns, 64);
      _tile_loadd(5, from + distances[tap] + 16 * row_bytes, row_bytes);
      _tile_loadd(7, columns + kTile, 64);
      multiply_tiles();
    }
  store_sums(tiles, 128);
}

/// Blocks (16 k, 16 c) of dweight, two by two: added to, or overwritten. rows[i]: tiles of dy, (16 k, 32 positions);
/// columns[i]: tiles of x, (16 pairs of positions, 16 c, 2); one after the other.
inline void weight_block(const Bf16* const rows[2], const Bf16* const columns[2], std::int64_t n_tiles,
                         float* const sums[4], bool add) {
  memory_fence();
  if (add)
    load_sums(sums, 64);
  else
    zero_sums();
  const Bf16 *row0 = rows[0], *row1 = rows[1], *column0 = columns[0], *column1 = columns[1];
  for (std::int64_t tile = 0; tile < n_tiles; ++tile) {
    _tile_loadd(4, row0, 64);
    _tile_loadd(6, column0, 64);
    _tile_loadd(5, row1, 64);
    _tile_loadd(7, column1, 64);
    multiply_tiles();
    row0 += kTile;
    row1 += kTile;
    column0 += kTile;
    column1 += kTile;
  }
  store_sums(sums, 64);
}

/// (a0, b0, a1, b1, ...) of two rows of 16 bf16.
inline Ints interleave(const Bf16* a, const Bf16* b) {
  HalfShorts low, high;
  std::memcpy(&low, a, sizeof low);
  std::memcpy(&high, b, sizeof high);
  return (Ints)__builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25,
                                       10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
/// Two rows of 16 fp32 values to bf16, one after the other.
inline Shorts round_rows(const float* a, const float* b) {
  return (Shorts)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(b), _mm512_loadu_ps(a));
}
inline void store(Bf16* to, Ints v) { std::memcpy(static_cast<void*>(to), &v, sizeof v); }

/// n times 32 values, `stride` apart, to n rows one after the other.
inline void copy_rows(const Bf16* from, std::int64_t stride, std::int64_t n, Bf16* to) {
  for (std::int64_t i = 0; i < n; ++i, from += stride, to += 32) std::memcpy(static_cast<void*>(to), from, 64);
}

/// 32 sums to bf16.
inline void store_bf16(Bf16* to, const float* sums) { store(to, (Ints)round_rows(sums, sums + 16)); }

/// 32 positions of 16 channels, `stride` values apart, as a tile of columns: (16 pairs of positions, 16 channels, 2).
inline void pairs_of_positions(const Bf16* from, std::int64_t stride, Bf16* to) {
  for (int j = 0; j < 16; ++j) store(to + 32 * j, interleave(from + 2 * j * stride, from + (2 * j + 1) * stride));
}

/// The same as a tile of rows: (16 channels, 32 positions).
inline void transpose_positions(const Bf16* from, std::int64_t stride, Bf16* to) {
  Ints rows[16];
  for (int j = 0; j < 16; ++j) rows[j] = interleave(from + 2 * j * stride, from + (2 * j + 1) * stride);
  transpose(rows);
  for (int c = 0; c < 16; ++c) store(to + 32 * c, rows[c]);
}

/// Two blocks (16 k, 16 c) of weights, one after the other in k, as a tile for sums over k: (16 pairs of k, 16 c, 2).
inline void weights_over_k(const Bf16* block0, const Bf16* block1, Bf16* to) {
  for (int j = 0; j < 16; ++j) {
    const Bf16* rows = (j < 8 ? block0 : block1) + 32 * (j % 8);
    store(to + 32 * j, interleave(rows, rows + 16));
  }
}

/// Two blocks (16 k, 16 c), one after the other in c, as a tile for sums over c: (16 pairs of c, 16 k, 2).
inline void weights_over_c(const Bf16* block0, const Bf16* block1, Bf16* to) {
  Ints rows[16];
  for (int k = 0; k < 16; ++k) {
    std::memcpy(&rows[k], block0 + 16 * k, 32);
    std::memcpy(reinterpret_cast<std::byte*>(&rows[k]) + 32, block1 + 16 * k, 32);
  }
  transpose(rows);
  for (int j = 0; j < 16; ++j) store(to + 32 * j, rows[j]);
}

}  // namespace lockstep::cpu::amx

#pragma GCC pop_options
