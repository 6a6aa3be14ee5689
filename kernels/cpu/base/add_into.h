// target += source, fp32 or bf16.
#pragma once

#include "kernels/cpu/base/bf16.h"
#include "kernels/cpu/base/parallel.h"

namespace lockstep::cpu {

inline void add_into(DType dtype, void* target, const void* source, std::size_t n_elements, const CpuContext& context) {
  with_elements(dtype, [&](auto element) {
    using E = decltype(element);
    auto* const sum = static_cast<E*>(target);
    const auto* const added = static_cast<const E*>(source);
    const auto n = static_cast<std::int64_t>(n_elements);
    const int parts = part_count(context, n * static_cast<std::int64_t>(sizeof(E)));
    run_parts(parts, [&](int part) {
      const Range range = part_of(n, part, parts);
      for (std::int64_t i = range.begin; i < range.end; ++i)
        sum[i] = from_float<E>(to_float(sum[i]) + to_float(added[i]));
    });
  });
}

}  // namespace lockstep::cpu
