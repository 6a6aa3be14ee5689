#include "kernels/cpu/base/amx.h"

#include "kernels/cpu/base/simd.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep::cpu {
namespace {

bool processor_has_it() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;  // leaf 7.0, edx
  constexpr unsigned kAvx512Bf16 = 1u << 5;                     // leaf 7.1, eax
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kAvx512Bf16) != 0 && detect_isa() == Isa::avx512;
}

/// Linux saves the state of the tiles only for processes that request it (arch_prctl(2)); their threads are included.
bool system_allows_it() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool amx_is_usable() {
  static const bool usable = processor_has_it() && system_allows_it();
  return usable && isa() == Isa::avx512;  // tests limit the instructions
}

}  // namespace lockstep::cpu

#else
bool lockstep::cpu::amx_is_usable() { return false; }
#endif
