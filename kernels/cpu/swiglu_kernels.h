// Kernels of swiglu.cpp for one instruction set (each_isa.h).

namespace lockstep::cpu::LOCKSTEP_ISA {

/// If `gradients` (dy) is null, `out` is y (rows, width). Otherwise it is dx, like x (rows, 2 * width).
template <typename E>
void swiglu_pass(std::int64_t width, const E* x, const E* gradients, E* out, bool accumulate, Range rows) {
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const E* const gates = x + 2 * row * width;
    const E* const ups = gates + width;
    for_columns(width, [&](auto lanes, std::int64_t c) {
      using T = decltype(lanes);
      const T gate = load<T>(gates + c), up = load<T>(ups + c), s = sigmoid(gate);
      if (gradients == nullptr) return store(out + row * width + c, gate * s * up);
      const T dy = load<T>(gradients + row * width + c);
      E* const dgates = out + 2 * row * width;
      E* const dups = dgates + width;
      const T dgate = dy * up * (s + gate * s * (1.0f - s)), dup = dy * (gate * s);
      store(dgates + c, accumulate ? load<T>(dgates + c) + dgate : dgate);
      store(dups + c, accumulate ? load<T>(dups + c) + dup : dup);
    });
  }
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA
