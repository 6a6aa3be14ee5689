// One binary for every x86-64: kernels are compiled three times (each_isa.h) and chosen here when called. On other
// processors there is only the baseline.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "kernels/cpu/base/bf16.h"
#include "kernels/cpu/base/machine.h"

namespace lockstep::cpu {

enum class Isa : std::uint8_t { baseline, avx2, avx512 };

/// The name of the instruction set on this kind of processor: "AVX-512".
constexpr const char* name(Isa isa) {
#ifdef __x86_64__
  return isa == Isa::avx512 ? "AVX-512" : isa == Isa::avx2 ? "AVX2" : "SSE2";
#else
  return isa == Isa::baseline ? "NEON" : "none";
#endif
}

/// The best instruction set that this processor has and LOCKSTEP_MAX_ISA allows (machine.h).
inline Isa detect_isa() {
#ifdef __x86_64__
  __builtin_cpu_init();
  if (max_isa() != MaxIsa::avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return Isa::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::baseline;
}

inline std::atomic<Isa>& selected_isa() {
  static std::atomic<Isa> isa{detect_isa()};
  return isa;
}

/// Tells the processor that this loop waits for another thread.
inline void spin_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// The instruction set in use.
inline Isa isa() { return selected_isa().load(std::memory_order_relaxed); }
/// Uses at most `limit`. For tests, which compare the three; must not be called while a kernel runs.
inline void limit_isa(Isa limit) {
  const Isa best = detect_isa();
  selected_isa().store(limit < best ? limit : best, std::memory_order_relaxed);
}

}  // namespace lockstep::cpu

/// LOCKSTEP_DISPATCH(f)(arguments) calls the f that each_isa.h compiled for this processor. f may be a template with
/// several arguments.
#ifdef __x86_64__
#define LOCKSTEP_DISPATCH(...)                                                                   \
  (::lockstep::cpu::isa() == ::lockstep::cpu::Isa::avx512 ? ::lockstep::cpu::avx512::__VA_ARGS__ \
   : ::lockstep::cpu::isa() == ::lockstep::cpu::Isa::avx2 ? ::lockstep::cpu::avx2::__VA_ARGS__   \
                                                          : ::lockstep::cpu::baseline::__VA_ARGS__)
#else
#define LOCKSTEP_DISPATCH(...) (::lockstep::cpu::baseline::__VA_ARGS__)
#endif
