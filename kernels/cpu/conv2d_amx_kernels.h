// The kernels of conv2d_amx.cpp, always compiled for AMX and AVX-512. Included once.
//
// A product of two 16x64-byte tiles takes 16 cycles, and loading a tile 8 or more, so each loaded tile is used twice: 2
// x 2 tiles of sums. Tiles 0 to 3 are the sums, 4 and 5 the factors of the rows, 6 and 7 those of the columns.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/base/bf16.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16,prefer-vector-width=512")

namespace lockstep::cpu::amx {

inline constexpr std::int64_t kTile = 512;  // bf16 values of a tile

/// GCC's tile intrinsics do not say that they read and write memory.
inline void memory_fence() { asm volatile("" ::: "memory"); }

/// Configures all 8 tiles as 16 rows of 64 bytes on this thread, from construction to destruction.
class Tiles {
 public:
  Tiles() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } configuration;
    memory_fence();
    _tile_loadconfig(&configuration);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

inline void multiply_tiles() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}
inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline void load_sums(const float* const sums[4], std::int64_t row_bytes) {
  _tile_loadd(0, sums[0], row_bytes);
  _tile_loadd(1, sums[1], row_bytes);
  _tile_loadd(2, sums[2], row_bytes);
  _tile_loadd(3, sums[3], row_bytes);
}
inline void store_sums(float* const sums[4], std::int64_t row_bytes) {
  memory_fence();
  _tile_stored(0, sums[0], row_bytes);
  _tile_stored(1, sums[1], row_bytes);
  _tile_stored(2, sums[2], row_bytes);
  _tile_stored(3, sums[3], row_bytes);
  memory_fence();
}

/// The position of a product's rows: 32 channels of chunk i for position p are at base + p * row + i * chunk, in
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

// Vector types and shuffles of the compiler, since GCC 12's own headers cause warnings if these intrinsics are used.
typedef std::int16_t Shorts __attribute__((vector_size(64)));
typedef std::int16_t HalfShorts __attribute__((vector_size(32)));
typedef std::int32_t Ints __attribute__((vector_size(64)));

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

/// Blocks 0 and 2, or 1 and 3, of four values of a and b.
inline Ints even_blocks(Ints a, Ints b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}
inline Ints odd_blocks(Ints a, Ints b) {
  return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

/// Transposes a matrix of 16 x 16 32-bit values: first inside of blocks of 4 x 4, then the blocks.
inline void transpose(Ints (&r)[16]) {
  Ints t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    t[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      const Ints a = t[i + j], b = t[i + j + 2];
      r[i + 2 * j] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
      r[i + 2 * j + 1] = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
  for (int half = 0; half < 16; half += 8)
    for (int i = half; i < half + 4; ++i) {
      t[i] = even_blocks(r[i], r[i + 4]);
      t[i + 4] = odd_blocks(r[i], r[i + 4]);
    }
  for (int i = 0; i < 8; ++i) {
    r[i] = even_blocks(t[i], t[i + 8]);
    r[i + 8] = odd_blocks(t[i], t[i + 8]);
  }
}

/// 32 positions of 16 channels, `stride` values apart, as tile of columns: (16 pairs of positions, 16 channels, 2).
inline void pairs_of_positions(const Bf16* from, std::int64_t stride, Bf16* to) {
  for (int j = 0; j < 16; ++j) store(to + 32 * j, interleave(from + 2 * j * stride, from + (2 * j + 1) * stride));
}

/// The same as tile of rows: (16 channels, 32 positions).
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
