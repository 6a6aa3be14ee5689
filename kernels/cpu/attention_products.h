// Products of tiles, and the packing of their numbers, for one instruction set (each_isa.h). Bf16Pair exists where
// LOCKSTEP_BF16_PRODUCTS is defined: vdpbf16ps multiplies two pairs and adds both products to an fp32 sum. Where
// LOCKSTEP_AMX_PRODUCTS is defined too, AMX computes products of pairs.
#include "kernels/cpu/base/lane_sums.h"

namespace lockstep::cpu::LOCKSTEP_ISA {

// ---- Lanes ----------------------------------------------------------------------------------------------------------

inline Ints lane_numbers() {
  Ints numbers;
  for (int i = 0; i < kLanes; ++i) numbers[i] = i;
  return numbers;
}
template <int distance>
inline Floats swap_lanes(Floats v) {
  return __builtin_shuffle(v, lane_numbers() ^ distance);
}
inline float greatest_lane(Floats v) {
  const auto with = [&](Floats other) { v = v > other ? v : other; };
  if constexpr (kLanes > 8) with(swap_lanes<8 % kLanes>(v));
  if constexpr (kLanes > 4) with(swap_lanes<4 % kLanes>(v));
  with(swap_lanes<2>(v));
  with(swap_lanes<1>(v));
  return v[0];
}

/// e^x for x <= 0 or slightly above, to 2 units in the last place; 0 below -87. The polynomial is that of Cephes' expf.
inline Floats exponential_to_zero(Floats x) {
  constexpr float kLog2E = 1.44269504088896341f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: the sum's lowest bit is a whole number
  const Floats shifted = x * kLog2E + kRound;
  const Floats k = shifted - kRound;
  const Floats r = x - k * kLn2High - k * kLn2Low;
  Floats p = broadcast<Floats>(1.9875691500e-4f);
  for (const float coefficient : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 0.5f})
    p = p * r + coefficient;
  p = p * (r * r) + r + 1.0f;
  const Floats power = (Floats)(((Ints)shifted + 127) << 23);  // the upper bits of `shifted` fall out
  return x < -87.0f ? Floats{} : p * power;
}

// ---- Rows -----------------------------------------------------------------------------------------------------------

/// A row of head_dim elements as numbers along the width, padded with zeros; a null source: zeros.
template <typename E>
inline void load_row(const E* source, const AttentionTiling& t, float* target) {
  if (source != nullptr)
    for_columns(t.head_dim, [&](auto lanes, std::int64_t c) { store(target + c, load<decltype(lanes)>(source + c)); });
  for (std::int64_t c = source != nullptr ? t.head_dim : 0; c < t.width; ++c) target[c] = 0;
}
/// A row of sums times `factor`, rounded.
template <typename E>
inline void store_row(const float* source, float factor, const AttentionTiling& t, E* target) {
  for_columns(t.head_dim,
              [&](auto lanes, std::int64_t c) { store(target + c, load<decltype(lanes)>(source + c) * factor); });
}
template <typename E>
inline float product_of_rows(const E* a, const E* b, std::int64_t width) {
  Floats sums{};
  float rest = 0;
  for_columns(width, [&](auto lanes, std::int64_t c) {
    using T = decltype(lanes);
    if constexpr (sizeof(T) == sizeof(float))
      rest += load<T>(a + c) * load<T>(b + c);
    else
      sums += load<T>(a + c) * load<T>(b + c);
  });
  return lanes_total(sums) + rest;
}

/// Columns [c, c + kLanes) of a row.
inline void store_p(float* row, std::int64_t c, Floats values) { store(row + c, values); }
/// The same columns of two rows, with numbers along the rows. `target`: the first row's columns.
inline void store_rows(float* target, const Floats values[2]) {
  store(target, values[0]);
  store(target + AttentionTiling::kKeys, values[1]);
}

/// `count` rows of a block of keys, transposed: (width, kKeys), padded with zeros.
template <typename E>
inline void pack_transposed(const E* source, std::int64_t count, const AttentionTiling& t, float* target) {
  const std::int64_t row = t.packed_width();
  for (std::int64_t c = 0; c < t.head_dim; ++c, target += AttentionTiling::kKeys) {
    for (std::int64_t key = 0; key < count; ++key) target[key] = to_float(source[key * row + c]);
    for (std::int64_t key = count; key < AttentionTiling::kKeys; ++key) target[key] = 0;
  }
  std::memset(target, 0, static_cast<std::size_t>((t.width - t.head_dim) * AttentionTiling::kKeys) * sizeof(float));
}
/// The same rows: (kKeys, width).
template <typename E>
inline void pack_rows(const E* source, std::int64_t count, const AttentionTiling& t, float* target) {
  for (std::int64_t key = 0; key < AttentionTiling::kKeys; ++key)
    load_row(key < count ? source + key * t.packed_width() : nullptr, t, target + key * t.width);
}

inline void multiply_add(Floats& sum, float a, Floats b) { sum += a * b; }
template <typename N>
struct VectorOf {
  using Type = Floats;
};

#ifdef LOCKSTEP_BF16_PRODUCTS
struct PairVector {
  __m512bh values;
};
template <>
struct VectorOf<Bf16Pair> {
  using Type = PairVector;
};
inline void multiply_add(Floats& sum, Bf16Pair a, PairVector b) {
  sum = (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(a.bits), b.values);
}

inline void load_row(const Bf16* source, const AttentionTiling& t, Bf16Pair* target) {
  const auto width_bytes = static_cast<std::size_t>(t.width) * sizeof(Bf16);
  const std::size_t used_bytes = source != nullptr ? static_cast<std::size_t>(t.head_dim) * sizeof(Bf16) : 0;
  if (used_bytes > 0) std::memcpy(static_cast<void*>(target), source, used_bytes);
  std::memset(reinterpret_cast<std::byte*>(target) + used_bytes, 0, width_bytes - used_bytes);
}
/// Two rows of numbers along the width become one of numbers along the rows.
inline void interleave_rows(const Bf16Pair* rows, std::int64_t width, Bf16Pair* target) {
  const auto* const first = reinterpret_cast<const Bf16*>(rows);
  for (std::int64_t c = 0; c < width; c += kLanes) {
    const __m512i low = _mm512_maskz_cvtepu16_epi32(0xffff, load<__m256i>((const void*)(first + c)));
    const __m512i high = _mm512_maskz_cvtepu16_epi32(0xffff, load<__m256i>((const void*)(first + width + c)));
    store((void*)(target + c), (__m512i)((Ints)low | (Ints)_mm512_maskz_slli_epi32(0xffff, high, 16)));
  }
}
inline void store_p(Bf16Pair* row, std::int64_t c, Floats values) {
  store((void*)(reinterpret_cast<Bf16*>(row) + c), _mm512_cvtneps_pbh((__m512)values));
}
inline void store_rows(Bf16Pair* target, const Floats values[2]) {
  // The first row's numbers are the lower half of the result before it is permuted.
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)values[1], (__m512)values[0]);
  static constexpr struct Order {
    constexpr Order() {
      for (int i = 0; i < 32; ++i) places[i] = static_cast<std::int16_t>(i / 2 + i % 2 * 16);
    }
    alignas(64) std::int16_t places[32] = {};
  } kOrder;
  store((void*)target, _mm512_maskz_permutexvar_epi16(0xffffffff, load<__m512i>((const void*)kOrder.places), both));
}
inline void pack_transposed(const Bf16* source, std::int64_t count, const AttentionTiling& t, Bf16Pair* target) {
  const std::int64_t row = t.packed_width();
  for (std::int64_t c = 0; c < t.head_dim; c += 2, target += AttentionTiling::kKeys) {
    const std::size_t size_bytes = c + 1 < t.head_dim ? sizeof(Bf16Pair) : sizeof(Bf16);
    for (std::int64_t key = 0; key < AttentionTiling::kKeys; ++key) {
      target[key].bits = 0;
      if (key < count) std::memcpy(&target[key], source + key * row + c, size_bytes);
    }
  }
  // If head_dim is odd, half of the last row is padding already.
  const std::int64_t rows = t.width / 2 - (t.head_dim + 1) / 2;
  std::memset(static_cast<void*>(target), 0,
              static_cast<std::size_t>(rows * AttentionTiling::kKeys) * sizeof(Bf16Pair));
}
inline void pack_rows(const Bf16* source, std::int64_t count, const AttentionTiling& t, Bf16Pair* target) {
  alignas(64) Bf16Pair rows[AttentionDescription::kMaxHeadDim];  // two
  for (std::int64_t key = 0; key < AttentionTiling::kKeys; key += 2, target += t.width) {
    for (std::int64_t i = 0; i < 2; ++i)
      load_row(key + i < count ? source + (key + i) * t.packed_width() : nullptr, t, rows + i * t.width / 2);
    interleave_rows(rows, t.width, target);
  }
}
#endif

// ---- Products -------------------------------------------------------------------------------------------------------

/// c (rows, columns) = a (rows, inner) * b (inner, columns), or added to it. Rows and columns are padded as in
/// AttentionTiling::Padding, and `inner` like columns. Strides are in numbers; columns are contiguous.
template <typename N>
struct Product {
  const N* a = nullptr;
  std::int64_t a_row = 0, a_inner = 1;
  const N* b = nullptr;
  std::int64_t b_row = 0;
  float* c = nullptr;
  std::int64_t c_row = 0;
  N* transposed = nullptr;  // if a_inner is not 1: memory for a strip of `a` with contiguous rows
};

#ifdef LOCKSTEP_AMX_PRODUCTS
using ProductRegisters = amx::Tiles;

constexpr std::int64_t kStrip = AttentionTiling::kAmxPadding.rows, kTile = 16;  // rows; pairs, or sums

/// Rows [row, row + kStrip) of a, (inner, rows) in memory, as (kStrip, inner).
inline void transpose_strip(const Product<Bf16Pair>& product, std::int64_t row, std::int64_t inner) {
  for (std::int64_t half = 0; half < kStrip; half += kTile)
    for (std::int64_t i = 0; i < inner; i += kTile) {
      Ints tile[kTile];
      for (std::int64_t j = 0; j < kTile; ++j)
        tile[j] = load<Ints>((const void*)(product.a + (i + j) * product.a_inner + row + half));
      amx::transpose(tile);
      for (std::int64_t j = 0; j < kTile; ++j) store((void*)(product.transposed + (half + j) * inner + i), tile[j]);
    }
}

template <bool kAdd, typename N>
void multiply(const Product<N>& product, std::int64_t rows, std::int64_t columns, std::int64_t inner) {
  constexpr auto kNumberBytes = static_cast<std::int64_t>(sizeof(N));
  const bool transpose = product.a_inner != 1;
  const std::int64_t a_row = transpose ? inner : product.a_row, b_bytes = product.b_row * kNumberBytes;
  for (std::int64_t row = 0; row < rows; row += kStrip) {
    if (transpose) transpose_strip(product, row, inner);
    const N* const strip = transpose ? product.transposed : product.a + row * a_row;
    for (std::int64_t column = 0; column < columns; column += 2 * kTile) {
      float* const c = product.c + row * product.c_row + column;
      float* const sums[4] = {c, c + kTile, c + kTile * product.c_row, c + kTile * product.c_row + kTile};
      amx::memory_fence();
      if (kAdd)
        amx::load_sums(sums, product.c_row * 4);
      else
        amx::zero_sums();
      for (std::int64_t i = 0; i < inner; i += kTile) {
        const N* const a = strip + i;
        const N* const b = product.b + i * product.b_row + column;
        _tile_loadd(4, a, a_row * kNumberBytes);
        _tile_loadd(6, b, b_bytes);
        _tile_loadd(5, a + kTile * a_row, a_row * kNumberBytes);
        _tile_loadd(7, b + kTile, b_bytes);
        amx::multiply_tiles();
      }
      amx::store_sums(sums, product.c_row * 4);
    }
  }
}
#else
/// What products need on a thread.
struct ProductRegisters {};

constexpr int kRows = static_cast<int>(AttentionTiling::Padding().rows);

template <bool kAdd, int kVectors, typename N>
inline void multiply_rows(const Product<N>& product, std::int64_t inner) {
  using Vector = typename VectorOf<N>::Type;
  Floats sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] = kAdd ? load<Floats>(product.c + r * product.c_row + v * kLanes) : Floats{};
  const N* a = product.a;
  const N* b = product.b;
  for (std::int64_t i = 0; i < inner; ++i, a += product.a_inner, b += product.b_row) {
    Vector columns[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) columns[v] = load<Vector>((const void*)(b + v * kLanes));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) multiply_add(sums[r][v], a[r * product.a_row], columns[v]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(product.c + r * product.c_row + v * kLanes, sums[r][v]);
}

template <bool kAdd, int kVectors, typename N>
inline void multiply_columns(Product<N> product, std::int64_t rows, std::int64_t inner) {
  for (std::int64_t row = 0; row < rows; row += kRows) {
    multiply_rows<kAdd, kVectors>(product, inner);
    product.a += kRows * product.a_row;
    product.c += kRows * product.c_row;
  }
}

template <bool kAdd, typename N>
void multiply(Product<N> product, std::int64_t rows, std::int64_t columns, std::int64_t inner) {
  constexpr int kVectors = kLanes == 16 ? 4 : 2;  // the registers have room for this many sums
  for (; columns >= kVectors * kLanes; columns -= kVectors * kLanes) {
    multiply_columns<kAdd, kVectors>(product, rows, inner);
    product.b += kVectors * kLanes;
    product.c += kVectors * kLanes;
  }
  if constexpr (kVectors > 2) {  // else a multiple of 16 columns leaves nothing
    if (columns == 3 * kLanes) multiply_columns<kAdd, 3>(product, rows, inner);
    if (columns == 2 * kLanes) multiply_columns<kAdd, 2>(product, rows, inner);
    if (columns == 1 * kLanes) multiply_columns<kAdd, 1>(product, rows, inner);
  }
}
#endif

}  // namespace lockstep::cpu::LOCKSTEP_ISA
