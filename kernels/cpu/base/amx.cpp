#include "kernels/cpu/base/amx.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep::cpu {
namespace {

bool processor_has_it() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;  // leaf 7.0, edx
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAmxBf16) != 0 && (d & kAmxTile) != 0;
}

/// Linux saves the state of the tiles only for processes that request it (arch_prctl(2)). This includes their threads.
bool system_allows_it() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool has_amx() {
  static const bool has = processor_has_it() && system_allows_it();
  return has;
}

}  // namespace lockstep::cpu

#else
bool lockstep::cpu::has_amx() { return false; }
#endif
