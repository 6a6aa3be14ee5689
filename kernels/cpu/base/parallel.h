// Threads of one op: work is cut into a fixed number of parts, so results do not depend on timing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/base/context.h"

namespace lockstep::cpu {

/// The number of parts for work over `size_bytes`: one per thread, or fewer where starting a thread costs more than it
/// saves.
inline int part_count(const CpuContext& context, std::int64_t size_bytes) {
  constexpr std::int64_t kBytesPerPart = 128 * 1024;
  const std::int64_t useful = std::max<std::int64_t>(1, size_bytes / kBytesPerPart);
  return static_cast<int>(std::min<std::int64_t>(std::max(1, context.threads), useful));
}

struct Range {
  std::int64_t begin = 0, end = 0;
};
/// Part `part` of [0, count), divided into `parts` whose sizes differ by at most one.
inline Range part_of(std::int64_t count, int part, int parts) {
  return {count * part / parts, count * (part + 1) / parts};
}

// Where the compiler may fuse a product and a sum in this code, work must be compiled once: if it were inlined for one
// part and for several, it could be fused in another way in each copy, and the bits would depend on the number of
// threads. x86-64 has these instructions only in kernels (each_isa.h), which are not inlined here.
#if defined(__x86_64__) && !defined(__FMA__)
#define LOCKSTEP_COMPILED_ONCE
#else
#define LOCKSTEP_COMPILED_ONCE [[gnu::noinline, gnu::noclone]]
#endif

template <typename Work>
LOCKSTEP_COMPILED_ONCE inline void run_part(const Work& work, int part) {
  work(part);
}

/// Calls work(part) for each part in [0, parts), each on a thread of its own.
template <typename Work>
void run_parts(int parts, const Work& work) {
  if (parts == 1) {
    run_part(work, 0);
    return;
  }
#pragma omp parallel for num_threads(parts) schedule(static, 1)
  for (int part = 0; part < parts; ++part) run_part(work, part);
}

/// Calls work(range) for each of `parts` ranges of [0, count), each on a thread of its own.
template <typename Work>
void run_ranges(int parts, std::int64_t count, const Work& work) {
  run_parts(parts, [&](int part) { work(part_of(count, part, parts)); });
}

}  // namespace lockstep::cpu
