// Kernels of activation.cpp for one instruction set (each_isa.h).
#include "kernels/cpu/activation_functions.h"

namespace lockstep::cpu::LOCKSTEP_ISA {

/// Elements [i, i + lanes of T).
template <typename F, typename T, typename E>
inline void activate_at(const ActivationPass& pass, std::int64_t i) {
  const T x = load<T>(static_cast<const E*>(pass.x) + i);
  E* const out = static_cast<E*>(pass.out) + i;
  if (pass.dy == nullptr) return store(out, F::value(x));
  const T dx = F::derivative(x) * load<T>(static_cast<const E*>(pass.dy) + i);
  store(out, pass.accumulate ? load<T>(out) + dx : dx);
}

template <typename F, typename E>
void activate_all(const ActivationPass& pass, Range range) {
  std::int64_t i = range.begin;
  for (; i + kLanes <= range.end; i += kLanes) activate_at<F, Floats, E>(pass, i);
  for (; i < range.end; ++i) activate_at<F, float, E>(pass, i);
}

template <typename E>
void activation_pass(const ActivationPass& pass, Range range) {
  with_function(pass.function, [&]<typename F>(F) { activate_all<F, E>(pass, range); });
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA
