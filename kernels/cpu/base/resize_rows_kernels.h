// Kernels of resize_rows.cpp for one instruction set (each_isa.h).

namespace lockstep::cpu::LOCKSTEP_ISA {

inline std::uint8_t rounded(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp((sum + (1 << (kResizeFractionBits - 1))) >> kResizeFractionBits, 0, 255));
}

/// Outputs [begin, end) of one row.
template <int channels>
void resize_row(const std::uint8_t* in, const ResizeWeights& w, int begin, int end, std::uint8_t* out) {
  for (int x = begin; x < end; ++x) {
    const auto at = static_cast<std::size_t>(x);
    const std::int32_t* weights = w.weights.data() + at * static_cast<std::size_t>(w.max_taps);
    const std::uint8_t* pixel = in + std::ptrdiff_t{channels} * w.first[at];
    std::int32_t sum[channels] = {};
    for (int k = 0; k < w.count[at]; ++k, pixel += channels)
      for (int c = 0; c < channels; ++c) sum[c] += weights[k] * pixel[c];
    for (int c = 0; c < channels; ++c) out[std::ptrdiff_t{channels} * x + c] = rounded(sum[c]);
  }
}

#if LOCKSTEP_LANES > 4
// A vector has one pixel of each of several rows, one row per 128 bits: a load takes 16 bytes of each row, which are
// the three channels of four neighbours and four bytes more. Two shuffles widen them to 16 bits, in pairs of
// neighbours. A product of pairs (vpmaddwd) then multiplies and adds two neighbours of a channel at once; it takes
// 16-bit factors, so the weights come in two halves. Measured for 375 x 500 to 224 x 224: see bench/micro/images.cpp.
constexpr int kRowsAtOnce = LOCKSTEP_LANES / 4;

#if LOCKSTEP_LANES == 16
typedef __m512i Wide;
inline Wide load_rows(const std::uint8_t* p, std::ptrdiff_t row_bytes) {
  Wide v = _mm512_maskz_broadcast_i32x4(0x000f, load<__m128i>((const void*)p));
  v = _mm512_mask_broadcast_i32x4(v, 0x00f0, load<__m128i>((const void*)(p + row_bytes)));
  v = _mm512_mask_broadcast_i32x4(v, 0x0f00, load<__m128i>((const void*)(p + 2 * row_bytes)));
  return _mm512_mask_broadcast_i32x4(v, 0xf000, load<__m128i>((const void*)(p + 3 * row_bytes)));
}
inline Wide in_each_row(__m128i v) { return _mm512_maskz_broadcast_i32x4(0xffff, v); }
inline Wide shuffle(Wide v, Wide order) { return _mm512_maskz_shuffle_epi8(~0ull, v, order); }
inline Ints pair_products(Wide a, Ints b) { return (Ints)_mm512_maskz_madd_epi16(0xffff, a, (Wide)b); }
inline Wide pack_to_16(Ints a, Ints b) { return _mm512_maskz_packus_epi32(0xffffffffu, (Wide)a, (Wide)b); }
inline Wide pack_to_8(Wide a, Wide b) { return _mm512_maskz_packus_epi16(~0ull, a, b); }
template <int row>
inline void store_row(std::uint8_t* p, Wide v) {
  store((void*)p, _mm512_maskz_extracti32x4_epi32(0xf, v, row));
}
inline Ints widen_bytes(const std::uint8_t* p) {
  return (Ints)_mm512_maskz_cvtepu8_epi32(0xffff, load<__m128i>((const void*)p));
}
inline void store_saturated_bytes(std::uint8_t* p, Ints v) {
  store((void*)p, _mm512_maskz_cvtusepi32_epi8(0xffff, (__m512i)v));
}
#else
typedef __m256i Wide;
inline Wide load_rows(const std::uint8_t* p, std::ptrdiff_t row_bytes) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load<__m128i>((const void*)p)),
                                 load<__m128i>((const void*)(p + row_bytes)), 1);
}
inline Wide in_each_row(__m128i v) { return _mm256_broadcastsi128_si256(v); }
inline Wide shuffle(Wide v, Wide order) { return _mm256_shuffle_epi8(v, order); }
inline Ints pair_products(Wide a, Ints b) { return (Ints)_mm256_madd_epi16(a, (Wide)b); }
inline Wide pack_to_16(Ints a, Ints b) { return _mm256_packus_epi32((Wide)a, (Wide)b); }
inline Wide pack_to_8(Wide a, Wide b) { return _mm256_packus_epi16(a, b); }
template <int row>
inline void store_row(std::uint8_t* p, Wide v) {
  store((void*)p, _mm256_extracti128_si256(v, row));
}
inline Ints widen_bytes(const std::uint8_t* p) {
  return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
}
inline void store_saturated_bytes(std::uint8_t* p, Ints v) {
  const __m256i words = _mm256_packus_epi32((__m256i)v, (__m256i)v);
  const __m256i bytes = _mm256_packus_epi16(words, words);
  _mm_storel_epi64((__m128i*)p, _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
}
#endif

/// The weighted sums of output x, as 32-bit integers: three channels and one undefined number per row.
inline Ints weighted_sum(const std::uint8_t* in, std::ptrdiff_t row_bytes, const ResizeWeights& w, std::size_t x) {
  const Wide first_pair = in_each_row(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  const Wide second_pair = in_each_row(_mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
  const std::uint8_t* pixels = in + std::ptrdiff_t{3} * w.first[x];
  const auto* halves =
      reinterpret_cast<const char*>(w.halves.data()) + x * static_cast<std::size_t>(w.max_groups()) * 16;
  Ints high{}, low{};
  for (int k = 0; k < w.count[x]; k += 4, pixels += 12, halves += 16) {
    const Wide four = load_rows(pixels, row_bytes);
    const Wide a = shuffle(four, first_pair), b = shuffle(four, second_pair);
    high += pair_products(a, Ints{} + load<std::int32_t>((const void*)halves));
    low += pair_products(a, Ints{} + load<std::int32_t>((const void*)(halves + 4)));
    high += pair_products(b, Ints{} + load<std::int32_t>((const void*)(halves + 8)));
    low += pair_products(b, Ints{} + load<std::int32_t>((const void*)(halves + 12)));
  }
  return ((high << 11) + low + (1 << (kResizeFractionBits - 1))) >> kResizeFractionBits;
}

template <std::size_t... row>
inline void store_rows(std::uint8_t* out, std::size_t row_bytes, Wide v, std::index_sequence<row...>) {
  (store_row<row>(out + row * row_bytes, v), ...);
}

/// The first `n` outputs, a multiple of 4, of kRowsAtOnce rows. Writes 4 bytes more.
inline void resize_rows_of_3(const std::uint8_t* in, std::ptrdiff_t in_row_bytes, const ResizeWeights& w, int n,
                             std::uint8_t* out, std::size_t out_row_bytes) {
  const Wide without_fourth = in_each_row(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
  for (int i = 0; i < n; i += 4, out += 12) {
    const auto x = static_cast<std::size_t>(i);
    const Wide left = pack_to_16(weighted_sum(in, in_row_bytes, w, x), weighted_sum(in, in_row_bytes, w, x + 1));
    const Wide right = pack_to_16(weighted_sum(in, in_row_bytes, w, x + 2), weighted_sum(in, in_row_bytes, w, x + 3));
    store_rows(out, out_row_bytes, shuffle(pack_to_8(left, right), without_fourth),
               std::make_index_sequence<kRowsAtOnce>());
  }
}

/// The number of leading outputs that read no byte beyond the row if all neighbours are loaded four at a time. An
/// output at the edge has fewer neighbours, and may read less than the one before.
inline int n_within_row(const ResizeWeights& w, int width) {
  std::size_t n = 0;
  while (n < w.first.size() && 3 * w.first[n] + (w.count[n] + 3) / 4 * 12 + 4 <= 3 * width) ++n;
  return static_cast<int>(n / 4 * 4);
}
#endif

inline void resize_along_rows(const ResizeRows& in, const ResizeWeights& w, std::uint8_t* out) {
  const std::size_t out_row_bytes = resized_row_bytes(w.n_outputs(), in.channels);
  int n_done = 0;  // outputs of each row
#if LOCKSTEP_LANES > 4
  if (in.channels == 3 && in.n_rows >= kRowsAtOnce) {
    n_done = n_within_row(w, in.width);
    for (int y = 0; y < in.n_rows; y += kRowsAtOnce) {
      const int row = std::min(y, in.n_rows - kRowsAtOnce);  // the last rows overlap those before
      resize_rows_of_3(in.bytes + row * in.row_bytes, in.row_bytes, w, n_done,
                       out + static_cast<std::size_t>(row) * out_row_bytes, out_row_bytes);
    }
  }
#endif
  for (int y = 0; y < in.n_rows; ++y)
    (in.channels == 3 ? resize_row<3> : resize_row<1>)(in.bytes + y * in.row_bytes, w, n_done, w.n_outputs(),
                                                       out + static_cast<std::size_t>(y) * out_row_bytes);
}

inline void resize_along_columns(const std::uint8_t* in, std::ptrdiff_t row_bytes, const std::int32_t* weights,
                                 int n_taps, int n_bytes, std::uint8_t* out) {
  int i = 0;
#if LOCKSTEP_LANES > 4
  for (; i + LOCKSTEP_LANES <= n_bytes; i += LOCKSTEP_LANES) {
    Ints sum = Ints{} + (1 << (kResizeFractionBits - 1));
    for (int k = 0; k < n_taps; ++k) sum += weights[k] * widen_bytes(in + k * row_bytes + i);
    store_saturated_bytes(out + i, sum >> kResizeFractionBits);
  }
#endif
  for (; i < n_bytes; ++i) {
    std::int32_t sum = 0;
    for (int k = 0; k < n_taps; ++k) sum += weights[k] * in[k * row_bytes + i];
    out[i] = rounded(sum);
  }
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA
