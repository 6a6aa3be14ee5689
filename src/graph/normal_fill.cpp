#include "graph/parameters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace lockstep::graph {

namespace {

constexpr int kLanes = 256;  // blocks that are computed together; their values stay in the L1 cache

/// log(u) for normal u > 0. u = 2^e m, m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m-1)/(m+1), |s| < 0.1716:
/// the first omitted term of the series is below 1e-17 of the sum.
inline double log_of(double u) {
  std::uint64_t bits;
  std::memcpy(&bits, &u, sizeof(bits));
  const std::uint64_t shifted = bits + 0x3FF0000000000000ULL - 0x3FE6A09E667F3BCDULL;  // carries if m < sqrt(1/2)
  const double exponent = static_cast<double>(static_cast<std::int32_t>(shifted >> 52) - 0x3FF);
  const std::uint64_t mantissa_bits = (shifted & 0x000FFFFFFFFFFFFFULL) + 0x3FE6A09E667F3BCDULL;
  double m;
  std::memcpy(&m, &mantissa_bits, sizeof(m));
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 1.0 / 23;
  p = p * z + 1.0 / 21;
  p = p * z + 1.0 / 19;
  p = p * z + 1.0 / 17;
  p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  const double tail = 2.0 * s * z * p;  // smaller than 2 s by z / 3: its rounding does not matter
  return exponent * 6.93147180369123816490e-01 + (2.0 * s + (tail + exponent * 1.90821492927058770002e-10));
}

struct SineCosine {
  double sine, cosine;
};

/// For 0 <= x < 2 pi: reduced to |r| <= pi/4 (Cody and Waite), then Taylor's series to 1e-17.
inline SineCosine sine_cosine(double x) {
  // Since x is not negative, adding a half and truncating rounds it, and this can be vectorised.
  const auto quadrant =
      static_cast<std::int32_t>(x * 0.63661977236758134308 + 0.5);  // NOLINT(bugprone-incorrect-roundings)
  const auto q = static_cast<double>(quadrant);
  const double r = (x - q * 1.57079632673412561417e+00) - q * 6.07710050650619224932e-11;
  const double z = r * r;
  double s = 1.0 / 355687428096000.0;  // 1/17!
  s = s * -z + 1.0 / 1307674368000.0;
  s = s * -z + 1.0 / 6227020800.0;
  s = s * -z + 1.0 / 39916800.0;
  s = s * -z + 1.0 / 362880.0;
  s = s * -z + 1.0 / 5040.0;
  s = s * -z + 1.0 / 120.0;
  s = s * -z + 1.0 / 6.0;
  const double sine = r - r * z * s;
  double c = 1.0 / 20922789888000.0;  // 1/16!
  c = c * -z + 1.0 / 87178291200.0;
  c = c * -z + 1.0 / 479001600.0;
  c = c * -z + 1.0 / 3628800.0;
  c = c * -z + 1.0 / 40320.0;
  c = c * -z + 1.0 / 720.0;
  c = c * -z + 1.0 / 24.0;
  const double cosine = 1.0 - (0.5 * z - z * z * c);
  const bool swapped = (quadrant & 1) != 0;
  const double a = swapped ? cosine : sine, b = swapped ? sine : cosine;
  return {(quadrant & 2) != 0 ? -a : a, ((quadrant + 1) & 2) != 0 ? -b : b};
}

#ifdef __x86_64__
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

/// kLanes blocks of normal numbers. There is no fused multiply-add, so all instruction sets give the same bits.
FOR_EACH_PROCESSOR void normal_lanes(const std::uint32_t* __restrict words, double scale, float* __restrict out) {
  for (int i = 0; i < kLanes; ++i) {
    const std::uint32_t w0 = words[i], w1 = words[kLanes + i], w2 = words[2 * kLanes + i], w3 = words[3 * kLanes + i];
    const auto uniform = [](std::uint32_t high, std::uint32_t low) {
      return (static_cast<double>(static_cast<std::int32_t>(high >> 5)) * 67108864.0 +
              static_cast<double>(static_cast<std::int32_t>(low >> 6)) + 0.5) /
             9007199254740992.0;
    };
    const double radius = std::sqrt(-2.0 * log_of(uniform(w0, w1)));
    const SineCosine angle = sine_cosine(6.283185307179586476925286766559 * uniform(w2, w3));
    out[2 * i] = static_cast<float>(scale * (radius * angle.cosine));
    out[2 * i + 1] = static_cast<float>(scale * (radius * angle.sine));
  }
}

FOR_EACH_PROCESSOR void philox_lanes(const std::uint32_t* __restrict counter, const std::uint32_t* __restrict key,
                                     std::uint64_t first, std::uint32_t* __restrict words) {
  for (int i = 0; i < kLanes; ++i) {
    const std::uint64_t index = first + static_cast<std::uint64_t>(i);
    std::uint32_t c0 = static_cast<std::uint32_t>(index), c1 = static_cast<std::uint32_t>(index >> 32);
    std::uint32_t c2 = counter[0], c3 = counter[1], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
      c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<std::uint32_t>(p1);
      c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<std::uint32_t>(p0);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    words[i] = c0;
    words[kLanes + i] = c1;
    words[2 * kLanes + i] = c2;
    words[3 * kLanes + i] = c3;
  }
}

}  // namespace

void fill_normal(const Philox& random, double scale, std::size_t first, std::span<float> values) {
  const std::array<std::uint32_t, 2> counter{random.stream(), random.epoch()}, key = random.key();
  alignas(64) std::array<std::uint32_t, 4 * kLanes> words;
  alignas(64) std::array<float, 2 * kLanes> numbers;
  while (!values.empty()) {
    philox_lanes(counter.data(), key.data(), first / 2, words.data());
    normal_lanes(words.data(), scale, numbers.data());
    const std::size_t before = first % 2, n = std::min(numbers.size() - before, values.size());
    std::copy_n(numbers.begin() + static_cast<std::ptrdiff_t>(before), n, values.begin());
    values = values.subspan(n);
    first += n;
  }
}

}  // namespace lockstep::graph
