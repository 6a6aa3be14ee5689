// The instructions that multiply bf16 numbers into fp32 sums: of vectors (AVX-512), and of tiles of 16 rows by 64 bytes
// (Intel AMX). LOCKSTEP_MAX_ISA and tests can limit the use of both.
#pragma once

#include "kernels/cpu/base/simd.h"

namespace lockstep::cpu {

/// Whether the processor multiplies pairs of bf16 numbers (vdpbf16ps).
inline bool bf16_products_are_usable() {
#ifdef __x86_64__
  static const bool has = (__builtin_cpu_init(), __builtin_cpu_supports("avx512bf16") != 0);
  return has && isa() == Isa::avx512 && max_isa() >= MaxIsa::avx512_bf16;
#else
  return false;
#endif
}

/// Whether the processor has AMX for bf16, and the system lets this process use it (requested on first use).
bool has_amx();

/// The same, but within these limits. The kernels for AMX also use AVX-512 for bf16.
inline bool amx_is_usable() { return max_isa() == MaxIsa::all && bf16_products_are_usable() && has_amx(); }

}  // namespace lockstep::cpu
