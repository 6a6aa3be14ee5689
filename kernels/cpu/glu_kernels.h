// Kernels of glu.cpp for one instruction set (each_isa.h).
#include "kernels/cpu/activation_functions.h"

namespace lockstep::cpu::LOCKSTEP_ISA {

/// If `gradients` (dy) is null, `out` is y (rows, width). Otherwise it is dx, like x (rows, 2 * width).
template <typename F, typename E>
void glu_rows(std::int64_t width, const E* x, const E* gradients, E* out, bool accumulate, Range rows) {
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const E* const gates = x + 2 * row * width;
    const E* const ups = gates + width;
    for_columns(width, [&](auto lanes, std::int64_t c) {
      using T = decltype(lanes);
      const T gate = load<T>(gates + c), up = load<T>(ups + c);
      if (gradients == nullptr) return store(out + row * width + c, F::value(gate) * up);
      const T dy = load<T>(gradients + row * width + c);
      E* const dgates = out + 2 * row * width;
      E* const dups = dgates + width;
      const T dgate = dy * up * F::derivative(gate), dup = dy * F::value(gate);
      store(dgates + c, accumulate ? load<T>(dgates + c) + dgate : dgate);
      store(dups + c, accumulate ? load<T>(dups + c) + dup : dup);
    });
  }
}

template <typename E>
void glu_pass(const GluDescription& d, const E* x, const E* gradients, E* out, bool accumulate, Range rows) {
  with_function(d.function, [&]<typename F>(F) { glu_rows<F>(d.width, x, gradients, out, accumulate, rows); });
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA
