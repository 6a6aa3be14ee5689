// Kernel of clip_norm.cpp for one instruction set (each_isa.h).

namespace lockstep::cpu::LOCKSTEP_ISA {

/// Sum of x^2 over n elements in fp64: 32 running sums, whatever the vector width, added in a fixed order.
template <typename E>
double sum_of_squares(const E* x, std::size_t n) {
  constexpr int kSums = 32 / kLanes;
  Widened<Floats> sums[kSums] = {};
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32)
    for (int v = 0; v < kSums; ++v) {
      const Widened<Floats> value = widen(load<Floats>(x + i + static_cast<std::size_t>(v * kLanes)));
      add_product(sums[v], value, value);
    }
  double lanes[32];
  std::memcpy(lanes, sums, sizeof lanes);
  double total = 0;
  for (const double lane : lanes) total += lane;
  for (; i < n; ++i) {
    const double value = to_float(x[i]);
    total += value * value;
  }
  return total;
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA
