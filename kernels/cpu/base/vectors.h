// Vector types of one instruction set; each_isa.h includes this several times, so it has no include guard. Where a
// conversion has no operator, x86-64 uses its intrinsics, and other processors the vector builtins of the compiler.
// Kernels are templates over T, a vector of floats or one float (the columns that fill no vector).

namespace lockstep::cpu::LOCKSTEP_ISA {

inline constexpr int kLanes = LOCKSTEP_LANES;
typedef float Floats __attribute__((vector_size(4 * LOCKSTEP_LANES)));
typedef double Doubles __attribute__((vector_size(4 * LOCKSTEP_LANES)));  // half as many
typedef std::int32_t Ints __attribute__((vector_size(4 * LOCKSTEP_LANES)));
typedef std::uint16_t Shorts __attribute__((vector_size(2 * LOCKSTEP_LANES)));
typedef std::uint8_t Bytes __attribute__((vector_size(LOCKSTEP_LANES)));

template <typename T>
inline T load(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
template <typename T>
inline void store(void* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

// bf16 (bf16.h): widened when loaded, rounded when stored.
template <typename T>
inline T load(const float* p) {
  return load<T>(static_cast<const void*>(p));
}
template <typename T>
inline T load(const Bf16* p) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return to_float(*p);
  } else {
#if LOCKSTEP_LANES == 16
    return (Floats)(Ints)_mm512_maskz_slli_epi32(
        0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, load<__m256i>((const void*)p)), 16);
#elif LOCKSTEP_LANES == 8
    return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(load<__m128i>((const void*)p)), 16);
#elif !defined(__x86_64__)
    return (Floats)(__builtin_convertvector(load<Shorts>((const void*)p), Ints) << 16);
#else
    return (Floats)_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i*)p));
#endif
  }
}
/// `result`: signed 16-bit values.
inline void store_bits(Bf16* p, Ints result) {
#if LOCKSTEP_LANES == 16
  store((void*)p, _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)result));
#elif LOCKSTEP_LANES == 8
  const __m256i v = (__m256i)result;  // packing with saturation changes nothing
  store((void*)p, _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
#elif !defined(__x86_64__)
  store((void*)p, __builtin_convertvector(result, Shorts));
#else
  _mm_storel_epi64((__m128i*)p, _mm_packs_epi32((__m128i)result, (__m128i)result));
#endif
}
inline void store(Bf16* p, float value) { *p = to_bf16(value); }
inline void store(Bf16* p, Floats value) {
  const Ints bits = (Ints)value;
  const Ints rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Ints nan = (bits >> 16) | 0x40;
  store_bits(p, value != value ? nan : rounded);
}
inline void store(float* p, float value) { *p = value; }
inline void store(float* p, Floats value) { store((void*)p, value); }

// Integers as bytes and back. On x86-64, __builtin_convertvector would go lane by lane.
inline void store_bytes(std::uint8_t* p, Ints value) {
#if LOCKSTEP_LANES == 16
  store(p, _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)value));
#elif LOCKSTEP_LANES == 8
  const __m256i v = (__m256i)value;
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storeu_si64(p, _mm_packus_epi16(words, words));
#elif !defined(__x86_64__)
  store((void*)p, __builtin_convertvector(value, Bytes));
#else
  const __m128i words = _mm_packs_epi32((__m128i)value, (__m128i)value);
  _mm_storeu_si32(p, _mm_packus_epi16(words, words));
#endif
}
inline void store_bytes(std::uint8_t* p, std::int32_t value) { *p = static_cast<std::uint8_t>(value); }
inline Ints load_bytes(const std::uint8_t* p, Ints) {
#if LOCKSTEP_LANES == 16
  return (Ints)_mm512_maskz_cvtepu8_epi32(0xffff, load<__m128i>(p));
#elif LOCKSTEP_LANES == 8
  return (Ints)_mm256_cvtepu8_epi32(_mm_loadu_si64(p));
#elif !defined(__x86_64__)
  return __builtin_convertvector(load<Bytes>((const void*)p), Ints);
#else
  const __m128i zero = _mm_setzero_si128(), words = _mm_unpacklo_epi8(_mm_loadu_si32(p), zero);
  return (Ints)_mm_unpacklo_epi16(words, zero);
#endif
}
inline std::int32_t load_bytes(const std::uint8_t* p, std::int32_t) { return *p; }

// The AVX-512 intrinsics are the zero-masked ones with a full mask, which cost nothing: the plain ones draw warnings
// out of GCC 12's own headers, and __builtin_convertvector makes two halves of each conversion.
inline Doubles widen_low(Floats v) {
#if LOCKSTEP_LANES == 16
  return (Doubles)_mm512_maskz_cvtps_pd(0xff, (__m256)__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7));
#elif LOCKSTEP_LANES == 8
  return (Doubles)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v));
#elif !defined(__x86_64__)
  return __builtin_convertvector(__builtin_shufflevector(v, v, 0, 1), Doubles);
#else
  return (Doubles)_mm_cvtps_pd((__m128)v);
#endif
}
inline Doubles widen_high(Floats v) {
#if LOCKSTEP_LANES == 16
  return (Doubles)_mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, (__m512)v, 1));
#elif LOCKSTEP_LANES == 8
  return (Doubles)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)v, 1));
#elif !defined(__x86_64__)
  return __builtin_convertvector(__builtin_shufflevector(v, v, 2, 3), Doubles);
#else
  return (Doubles)_mm_cvtps_pd(_mm_movehl_ps((__m128)v, (__m128)v));
#endif
}
inline Floats square_root(Floats v) {
#if LOCKSTEP_LANES == 16
  return (Floats)_mm512_maskz_sqrt_ps(0xffff, (__m512)v);
#elif LOCKSTEP_LANES == 8
  return (Floats)_mm256_sqrt_ps((__m256)v);
#elif !defined(__x86_64__)
  for (int i = 0; i < kLanes; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#else
  return (Floats)_mm_sqrt_ps((__m128)v);
#endif
}
inline float square_root(float v) { return __builtin_sqrtf(v); }

/// As many fp64 values as T has floats.
template <typename T>
struct Widened;
template <>
struct Widened<Floats> {
  Doubles low, high;
};
template <>
struct Widened<float> {
  double value;
};

inline Widened<Floats> widen(Floats v) { return {widen_low(v), widen_high(v)}; }
inline Widened<float> widen(float v) { return {v}; }
inline void add(Widened<Floats>& sum, const Widened<Floats>& v) {
  sum.low += v.low;
  sum.high += v.high;
}
inline void add(Widened<float>& sum, const Widened<float>& v) { sum.value += v.value; }
inline void add_product(Widened<Floats>& sum, const Widened<Floats>& a, const Widened<Floats>& b) {
  sum.low += a.low * b.low;
  sum.high += a.high * b.high;
}
inline void add_product(Widened<float>& sum, const Widened<float>& a, const Widened<float>& b) {
  sum.value += a.value * b.value;
}

inline double total(const Widened<Floats>& sum) {
  double all = 0;
  for (int i = 0; i < kLanes / 2; ++i) all += sum.low[i] + sum.high[i];
  return all;
}

/// A sum of products in fp64, over vectors of columns and the remaining columns.
struct ProductSum {
  Widened<Floats> of_vectors{};
  Widened<float> of_rest{};

  void add(Floats a, Floats b) { add_product(of_vectors, widen(a), widen(b)); }
  void add(float a, float b) { add_product(of_rest, widen(a), widen(b)); }
  double value() const { return total(of_vectors) + of_rest.value; }
};

/// Keeps the loops of one column scalar: vectorised across rows they would be large and never faster.
template <typename T>
inline void scalar_stays_scalar() {
  if constexpr (sizeof(T) == sizeof(float)) asm volatile("");
}

/// The number of lanes of a T, and the integer type that a comparison of two T returns.
template <typename T>
struct Lanes;
template <>
struct Lanes<Floats> {
  static constexpr int kCount = kLanes;
  using Integers = Ints;
};
template <>
struct Lanes<float> {
  static constexpr int kCount = 1;
  using Integers = std::int32_t;
};

template <typename T>
inline T broadcast(float value) {
  return T{} + value;
}
/// ReLU that keeps a NaN, as PyTorch's does.
template <typename T>
inline T relu(T v) {
  return v < T{} ? T{} : v;
}
/// Its gradient: zero where z <= 0.
template <typename T>
inline T relu_backward(T z, T gradient) {
  return z <= T{} ? T{} : gradient;
}

/// Calls at(T{}, column) for vectors of columns and then for the remaining columns one by one.
template <typename F>
inline void for_columns(std::int64_t width, const F& at) {
  std::int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) at(Floats{}, c);
  for (; c < width; ++c) at(0.0f, c);
}

/// e^x to 2 units in the last place for |x| <= 87; beyond, infinity or e^-87. x = k ln 2 + r, |r| <= ln 2 / 2; a
/// polynomial for e^r (Taylor's, whose error of r^8 / 8! is 5e-9 at most), and k added to the exponent.
template <typename T>
inline T exponential(T x) {
  constexpr float kLimit = 87.0f, kLog2E = 1.44269504088896341f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: the sum's lowest bit is a whole number
  const T unclamped = x;
  x = x > T{} + kLimit ? T{} + kLimit : x;
  x = x < T{} - kLimit ? T{} - kLimit : x;
  const T shifted = x * kLog2E + kRound;
  const T k = shifted - kRound;
  const T r = x - k * kLn2High - k * kLn2Low;
  T p = T{} + 1.0f / 5040;
  for (const float coefficient : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = p * r + coefficient;
  using Integers = typename Lanes<T>::Integers;
  Integers bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 127) << 23;  // the upper bits of `shifted` fall out
  T power;
  std::memcpy(&power, &bits, sizeof power);
  return unclamped > T{} + kLimit ? T{} + __builtin_inff() : p * power;
}

template <typename T>
inline T sigmoid(T x) {
  return 1.0f / (1.0f + exponential(-x));
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA
