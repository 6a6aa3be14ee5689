// What the op benchmarks share: a backend, memory for arguments, and the machine's own limits, measured in the same
// run: how fast its threads copy memory, and how many multiplications and additions their vector units reach.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "lockstep/backend.h"

namespace lockstep::bench {

inline constexpr std::int64_t kBatch = 32;  // samples a rank: what `make bench-peers` trains with

/// LOCKSTEP_BENCH_THREADS, else 1.
inline int n_threads() {
  const char* text = std::getenv("LOCKSTEP_BENCH_THREADS");
  return text ? std::max(1, std::atoi(text)) : 1;
}

inline Backend& backend() {
  static const std::unique_ptr<Backend> instance = make_backend({.device = "cpu", .threads = n_threads()});
  return *instance;
}

// ---- Limits ---------------------------------------------------------------------------------------------------------

/// The shortest of some runs of `work`, in seconds.
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

/// Bytes read plus bytes written a second by memcpy, all threads, far beyond the caches.
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

// Twelve chains of dependent multiply-adds: enough for two units of a latency of four to six cycles.
inline constexpr int kChains = 12;
inline constexpr std::int64_t kRounds = 4'000'000;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) inline float multiply_add_512() {
  __m512 sums[kChains], factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(0.001f);
  for (__m512& s : sums) s = term;
  for (std::int64_t round = 0; round < kRounds; ++round)
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, term);
  for (int i = 1; i < kChains; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  return _mm512_cvtss_f32(sums[0]);
}

__attribute__((target("avx2,fma"))) inline float multiply_add_256() {
  __m256 sums[kChains], factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(0.001f);
  for (__m256& s : sums) s = term;
  for (std::int64_t round = 0; round < kRounds; ++round)
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, term);
  for (int i = 1; i < kChains; ++i) sums[0] = _mm256_add_ps(sums[0], sums[i]);
  return _mm256_cvtss_f32(sums[0]);
}
#endif

/// fp32 multiplications plus additions a second of all threads; 0 where the vector units are not known here.
inline double measure_multiply_rate() {
#if defined(__x86_64__)
  const bool wide = __builtin_cpu_supports("avx512f");
  if (!wide && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) return 0;
  const int threads = n_threads();
  const double seconds = least_seconds(5, [&] {
#pragma omp parallel for num_threads(threads)
    for (int t = 0; t < threads; ++t) benchmark::DoNotOptimize(wide ? multiply_add_512() : multiply_add_256());
  });
  return 2.0 * (wide ? 16 : 8) * kChains * static_cast<double>(kRounds) * threads / seconds;
#else
  return 0;
#endif
}

struct Limits {
  double copy_bytes_per_second = 0, flops_per_second = 0;
};
inline const Limits& limits() {
  static const Limits measured{measure_copy_bandwidth(), measure_multiply_rate()};
  return measured;
}

/// The loop of a benchmark. Beside the time: GFLOP/s with its share of the multiply rate, and GB/s with its share of
/// the copy bandwidth. `bytes` are those that must be moved at least: every argument once. 0: not told. What stays in
/// the caches from one repetition to the next may exceed 100 % of the copy bandwidth.
template <typename Work>
void measure(benchmark::State& state, const Work& work, double flops, double bytes) {
  work();  // touches all memory
  const auto begin = std::chrono::steady_clock::now();
  for (auto _ : state) work();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
                         static_cast<double>(state.iterations());
  const auto tell = [&](const char* name, const char* share, double amount, double limit) {
    if (amount <= 0) return;
    state.counters[name] = amount / seconds / 1e9;
    if (limit > 0) state.counters[share] = 100 * amount / seconds / limit;
  };
  tell("GFLOP/s", "% of multiply rate", flops, limits().flops_per_second);
  tell("GB/s", "% of copy", bytes, limits().copy_bytes_per_second);
}

// ---- Arguments ------------------------------------------------------------------------------------------------------

/// Memory of the backend, filled with numbers in (-1, 1): zeros and denormals would be another benchmark.
class Arguments {
 public:
  template <typename T = float>
  T* make(std::int64_t n_elements) {
    T* data = static_cast<T*>(bytes(static_cast<std::size_t>(n_elements) * sizeof(T)));
    std::uint32_t state = 1;
    for (std::int64_t i = 0; i < n_elements; ++i) {
      state = state * 1664525u + 1013904223u;
      if constexpr (std::is_floating_point_v<T>) data[i] = static_cast<T>(static_cast<std::int32_t>(state)) * 0x1p-31f;
    }
    return data;
  }
  void* bytes(std::size_t size_bytes) {
    owned_.push_back(backend().allocate(std::max<std::size_t>(size_bytes, 64), "benchmark"));
    return owned_.back()->data();
  }
  OpMemory memory_of(const Op& op) {
    const OpNeeds needs = op.needs();
    return {bytes(std::max(needs.forward_workspace_bytes, needs.backward_workspace_bytes)), bytes(needs.saved_bytes)};
  }

 private:
  std::vector<std::unique_ptr<Memory>> owned_;
};

/// Registers one benchmark; `body` makes the op and its arguments and runs the loop.
template <typename Body>
benchmark::internal::Benchmark* add(const std::string& name, Body body) {
  return benchmark::RegisterBenchmark(name.c_str(), [body](benchmark::State& state) { body(state); })
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

inline int run_all(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const auto number = [](double value) { return std::to_string(static_cast<long>(value)); };
  benchmark::AddCustomContext("device", backend().device().name);
  benchmark::AddCustomContext("copy bandwidth", number(limits().copy_bytes_per_second / 1e9) + " GB/s");
  benchmark::AddCustomContext("multiply rate", number(limits().flops_per_second / 1e9) + " GFLOP/s");
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace lockstep::bench
