// AMX without AMX: the tile intrinsics as ordinary code, so that kernels written for AMX are tested on every processor
// with AVX-512 for bf16. The Makefile includes this file at the start of such sources.
//
// A thread's tile registers start without a configuration, like the processor's; using them then aborts the test.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "lockstep/bf16.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma")  // so that a product of tiles is vectorised

namespace lockstep::test::amx {

struct Configuration {
  std::uint8_t palette, start_row, reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};
static_assert(sizeof(Configuration) == 64);

struct Registers {
  Configuration configuration{};
  unsigned char tiles[8][16][64]{};

  int rows(int tile) const { return configuration.rows[tile]; }
  std::size_t row_bytes(int tile) const { return configuration.row_bytes[tile]; }
  static void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "emulated AMX: %s\n", what);
    std::abort();
  }

  void configure(const void* from) {
    std::memcpy(&configuration, from, sizeof configuration);
    Registers::require(configuration.palette == 1, "the palette is not 1");
    for (int tile = 0; tile < 8; ++tile)
      Registers::require(rows(tile) <= 16 && row_bytes(tile) <= 64 && row_bytes(tile) % 4 == 0, "impossible tile");
    std::memset(tiles, 0, sizeof tiles);
  }
  void release() { *this = Registers{}; }
  void require_configured(int tile) const {
    Registers::require(tile >= 0 && tile < 8 && rows(tile) > 0 && row_bytes(tile) > 0, "a tile is not configured");
  }
  void zero(int tile) {
    require_configured(tile);
    std::memset(tiles[tile], 0, sizeof tiles[tile]);
  }
  void load(int tile, const void* base, std::int64_t stride_bytes) {
    zero(tile);
    for (int row = 0; row < rows(tile); ++row)
      std::memcpy(tiles[tile][row], static_cast<const unsigned char*>(base) + row * stride_bytes, row_bytes(tile));
  }
  void store(int tile, void* base, std::int64_t stride_bytes) const {
    require_configured(tile);
    for (int row = 0; row < rows(tile); ++row)
      std::memcpy(static_cast<unsigned char*>(base) + row * stride_bytes, tiles[tile][row], row_bytes(tile));
  }
  /// Products are added one by one, each with one rounding. The processor's order within a pair may be different.
  void multiply(int sum, int a, int b) {
    require_configured(sum);
    require_configured(a);
    require_configured(b);
    Registers::require(
        rows(sum) == rows(a) && row_bytes(a) == static_cast<std::size_t>(4 * rows(b)) && row_bytes(sum) == row_bytes(b),
        "the sizes of a product's tiles do not match");
    const int columns = static_cast<int>(row_bytes(sum) / 4);
    for (int row = 0; row < rows(sum); ++row)
      for (int pair = 0; pair < rows(b); ++pair) {
        const float first = number(a, row, 2 * pair), second = number(a, row, 2 * pair + 1);
        for (int column = 0; column < columns; ++column) {
          float total;
          std::memcpy(&total, tiles[sum][row] + 4 * column, sizeof total);
          total = __builtin_fmaf(second, number(b, pair, 2 * column + 1), total);
          total = __builtin_fmaf(first, number(b, pair, 2 * column), total);
          std::memcpy(tiles[sum][row] + 4 * column, &total, sizeof total);
        }
      }
  }

 private:
  float number(int tile, int row, int i) const {
    Bf16 value;
    std::memcpy(static_cast<void*>(&value), tiles[tile][row] + 2 * i, sizeof value);
    return to_float(value);
  }
};

inline Registers& registers() {
  thread_local Registers registers;
  return registers;
}

}  // namespace lockstep::test::amx

#pragma GCC pop_options

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) ::lockstep::test::amx::registers().configure(from)
#define _tile_release() ::lockstep::test::amx::registers().release()
#define _tile_loadd(tile, base, stride) ::lockstep::test::amx::registers().load(tile, base, stride)
#define _tile_stored(tile, base, stride) ::lockstep::test::amx::registers().store(tile, base, stride)
#define _tile_zero(tile) ::lockstep::test::amx::registers().zero(tile)
#define _tile_dpbf16ps(sum, a, b) ::lockstep::test::amx::registers().multiply(sum, a, b)
