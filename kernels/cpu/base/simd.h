// One binary for every x86-64: kernels are compiled three times (each_isa.h) and chosen here when called.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/base/bf16.h"

namespace lockstep::cpu {

enum class Isa : std::uint8_t { baseline, avx2, avx512 };

inline Isa detect_isa() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl"))
    return Isa::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
  return Isa::baseline;
}

inline std::atomic<Isa>& selected_isa() {
  static std::atomic<Isa> isa{detect_isa()};
  return isa;
}

/// The instruction set in use: the best that this processor has.
inline Isa isa() { return selected_isa().load(std::memory_order_relaxed); }
/// Uses at most `limit`. For tests, which compare the three; must not be called while a kernel runs.
inline void limit_isa(Isa limit) {
  const Isa best = detect_isa();
  selected_isa().store(limit < best ? limit : best, std::memory_order_relaxed);
}

}  // namespace lockstep::cpu

/// LOCKSTEP_DISPATCH(f)(arguments) calls the f that each_isa.h compiled for this processor.
#define LOCKSTEP_DISPATCH(function)                                                           \
  (::lockstep::cpu::isa() == ::lockstep::cpu::Isa::avx512 ? ::lockstep::cpu::avx512::function \
   : ::lockstep::cpu::isa() == ::lockstep::cpu::Isa::avx2 ? ::lockstep::cpu::avx2::function   \
                                                          : ::lockstep::cpu::baseline::function)
