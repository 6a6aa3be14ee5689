// Kernels of activation.cpp for one instruction set (each_isa.h).
// relu apart, f(x) = x * sigmoid(g(x)): silu has g(x) = x, and gelu g(x) = 2 sqrt(2/pi) (x + 0.044715 x^3), since
// (1 + tanh(u)) / 2 = sigmoid(2u).

namespace lockstep::cpu::LOCKSTEP_ISA {

struct Relu {
  template <typename T>
  static T value(T x) {
    return relu(x);
  }
  template <typename T>
  static T derivative(T x) {
    return x > T{} ? T{} + 1.0f : T{};
  }
};
struct Silu {
  template <typename T>
  static T value(T x) {
    return x * sigmoid(x);
  }
  template <typename T>
  static T derivative(T x) {
    const T s = sigmoid(x);
    return s + x * s * (1.0f - s);
  }
};
struct Gelu {
  static constexpr float kTwoSqrt2OverPi = 1.5957691216057308f, kCubic = 0.044715f;
  template <typename T>
  static T value(T x) {
    return x * sigmoid(kTwoSqrt2OverPi * (x + kCubic * x * x * x));
  }
  template <typename T>
  static T derivative(T x) {
    const T s = sigmoid(kTwoSqrt2OverPi * (x + kCubic * x * x * x));
    return s + x * s * (1.0f - s) * (kTwoSqrt2OverPi * (1.0f + 3.0f * kCubic * x * x));
  }
};

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
  if (pass.function == ActivationFunction::relu) activate_all<Relu, E>(pass, range);
  if (pass.function == ActivationFunction::gelu) activate_all<Gelu, E>(pass, range);
  if (pass.function == ActivationFunction::silu) activate_all<Silu, E>(pass, range);
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA
