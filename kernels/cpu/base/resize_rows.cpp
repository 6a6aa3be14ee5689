#include "lockstep/resize_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

// The file readers are fuzzed in a separate program, which is compiled with clang and without vector instructions.
#ifdef __clang__
#define LOCKSTEP_ISA baseline
#define LOCKSTEP_LANES 4
#include "kernels/cpu/base/resize_rows_kernels.h"
#define LOCKSTEP_DISPATCH(function) cpu::baseline::function
#else
#include "kernels/cpu/base/simd.h"

#define LOCKSTEP_KERNELS "kernels/cpu/base/resize_rows_kernels.h"
#include "kernels/cpu/base/each_isa.h"
#endif

namespace lockstep {

void ResizeWeights::split() {
  constexpr int kLowBits = 11;
  const auto n = static_cast<std::size_t>(n_outputs()), groups = static_cast<std::size_t>(max_groups());
  halves.assign(n * groups * 8, 0);
  for (std::size_t x = 0; x < n; ++x)
    for (std::size_t k = 0; k < static_cast<std::size_t>(count[x]); ++k) {
      const std::int32_t weight = weights[x * static_cast<std::size_t>(max_taps) + k];
      std::int16_t* pair = halves.data() + (x * groups + k / 4) * 8 + k % 4 / 2 * 4 + k % 2;
      pair[0] = static_cast<std::int16_t>(weight >> kLowBits);
      pair[2] = static_cast<std::int16_t>(weight & ((1 << kLowBits) - 1));
    }
}

void resize_along_rows(const ResizeRows& in, const ResizeWeights& weights, std::uint8_t* out) {
  LOCKSTEP_DISPATCH(resize_along_rows)(in, weights, out);
}

void resize_along_columns(const std::uint8_t* in, std::ptrdiff_t row_bytes, const std::int32_t* weights, int n_taps,
                          int n_bytes, std::uint8_t* out) {
  LOCKSTEP_DISPATCH(resize_along_columns)(in, row_bytes, weights, n_taps, n_bytes, out);
}

}  // namespace lockstep
