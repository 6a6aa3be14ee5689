// Activation functions and their derivatives for one instruction set (each_isa.h).
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

/// Calls call(F{}) with the function.
template <typename Call>
inline void with_function(ActivationFunction function, const Call& call) {
  if (function == ActivationFunction::relu) call(Relu{});
  if (function == ActivationFunction::gelu) call(Gelu{});
  if (function == ActivationFunction::silu) call(Silu{});
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA
