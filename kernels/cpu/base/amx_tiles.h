// The tile registers of AMX: 8 tiles of 16 rows by 64 bytes, and the product of two tiles of bf16, which is added to a
// tile of fp32. Always compiled for AMX and AVX-512; a caller checks amx_is_usable() (amx.h).
//
// A product of two tiles takes 16 cycles, and loading a tile 8 or more, so each loaded tile is used twice: 2 x 2 tiles
// of sums. Tiles 0 to 3 are the sums, 4 and 5 the factors of the rows, 6 and 7 those of the columns.
#pragma once

#include <immintrin.h>

#include <cstdint>

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

// Vector types and shuffles of the compiler, since GCC 12's own headers cause warnings if these intrinsics are used.
typedef std::int16_t Shorts __attribute__((vector_size(64)));
typedef std::int16_t HalfShorts __attribute__((vector_size(32)));
typedef std::int32_t Ints __attribute__((vector_size(64)));

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

}  // namespace lockstep::cpu::amx

#pragma GCC pop_options
