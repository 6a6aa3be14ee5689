// The machine's own limits, measured when a benchmark program starts: how fast its threads copy memory, and how many
// multiplications and additions their units reach.
//
// LOCKSTEP_BENCH_THREADS: threads (1). LOCKSTEP_BENCH_DTYPE: fp32 (default) or bf16, of activations.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "lockstep/dtype.h"

namespace lockstep::bench {

inline int n_threads() {
  const char* text = std::getenv("LOCKSTEP_BENCH_THREADS");
  return text ? std::max(1, std::atoi(text)) : 1;
}

inline DType dtype() {
  const char* text = std::getenv("LOCKSTEP_BENCH_DTYPE");
  for (const DType type : {DType::fp32, DType::bf16})
    if (name(type) == (text ? text : "fp32")) return type;
  std::fprintf(stderr, "LOCKSTEP_BENCH_DTYPE=%s: fp32 or bf16\n", text);
  std::exit(2);
}

/// The seconds of the shortest of `n_runs` runs of `work`.
template <typename Work>
double least_seconds(int n_runs, const Work& work) {
  double least = 1e30;
  for (int run = 0; run < n_runs; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return least;
}

/// Bytes read plus bytes written per second by memcpy on all threads. The arrays are much larger than the caches.
inline double measure_copy_bandwidth() {
  constexpr std::size_t kBytes = std::size_t{128} << 20;
  const int threads = n_threads();
  std::vector<char> source(kBytes, 1), target(kBytes);
  const double seconds = least_seconds(5, [&] {
#pragma omp parallel for num_threads(threads)
    for (int t = 0; t < threads; ++t) {
      const std::size_t begin = kBytes / threads * t, end = t + 1 == threads ? kBytes : kBytes / threads * (t + 1);
      std::memcpy(target.data() + begin, source.data() + begin, end - begin);
    }
    benchmark::ClobberMemory();
  });
  return 2.0 * kBytes / seconds;
}

// The rate of the multiply units in registers. Each function runs kRounds rounds and returns the number of
// multiplications and additions per round. Twelve chains of dependent multiply-adds are enough for two units with a
// latency of four to six cycles.
inline constexpr int kChains = 12;
inline constexpr std::int64_t kRounds = 4'000'000;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) inline int multiply_fp32_512() {
  __m512 sums[kChains], factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(0.001f);
  for (__m512& s : sums) s = term;
  for (std::int64_t round = 0; round < kRounds; ++round)
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, term);
  for (__m512& s : sums) benchmark::DoNotOptimize(_mm512_cvtss_f32(s));
  return 2 * 16 * kChains;
}

__attribute__((target("avx2,fma"))) inline int multiply_fp32_256() {
  __m256 sums[kChains], factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(0.001f);
  for (__m256& s : sums) s = term;
  for (std::int64_t round = 0; round < kRounds; ++round)
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, term);
  for (__m256& s : sums) benchmark::DoNotOptimize(_mm256_cvtss_f32(s));
  return 2 * 8 * kChains;
}

__attribute__((target("avx512f,avx512bf16"))) inline int multiply_bf16_512() {
  __m512 sums[kChains];
  for (__m512& s : sums) s = _mm512_setzero_ps();
  __m512bh factor = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f));
  for (std::int64_t round = 0; round < kRounds; ++round)
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], factor, factor);
  for (__m512& s : sums) benchmark::DoNotOptimize(_mm512_cvtss_f32(s));
  return 2 * 32 * kChains;
}

/// Four products of a 16x32 and a 32x16 tile per round, each added to its own sum.
__attribute__((target("amx-tile,amx-bf16"))) inline int multiply_bf16_amx() {
  struct alignas(64) {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } tiles;
  benchmark::DoNotOptimize(tiles);  // GCC 12's optimizer sees only the first 8 bytes
  _tile_loadconfig(&tiles);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (std::int64_t round = 0; round < kRounds; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 4 * 2 * 16 * 16 * 32;
}

/// Linux saves the state of the tiles only for processes that request it (arch_prctl(2)).
inline bool has_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return __builtin_cpu_supports("amx-bf16") && ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

inline int (*multiply_loop())() {
  if (dtype() == DType::bf16 && has_amx()) return multiply_bf16_amx;
  if (dtype() == DType::bf16 && __builtin_cpu_supports("avx512bf16")) return multiply_bf16_512;
  if (__builtin_cpu_supports("avx512f")) return multiply_fp32_512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return multiply_fp32_256;
  return nullptr;
}
#else
inline int (*multiply_loop())() { return nullptr; }
#endif

/// Multiplications plus additions per second of all threads, with the fastest instructions for dtype(); 0 if they are
/// not known here.
inline double measure_multiply_rate() {
  int (*const loop)() = multiply_loop();
  if (loop == nullptr) return 0;
  const int threads = n_threads();
  int flops_a_round = 0;
  const double seconds = least_seconds(5, [&] {
#pragma omp parallel for num_threads(threads) reduction(max : flops_a_round)
    for (int t = 0; t < threads; ++t) flops_a_round = loop();
  });
  return static_cast<double>(flops_a_round) * static_cast<double>(kRounds) * threads / seconds;
}

struct Limits {
  double copy_bytes_per_second = 0, flops_per_second = 0;
};
inline const Limits& limits() {
  static const Limits measured{measure_copy_bandwidth(), measure_multiply_rate()};
  return measured;
}

}  // namespace lockstep::bench
