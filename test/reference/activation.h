// Activation functions, straight from the formulas of lockstep/ops/activation_function.h.
#pragma once

#include <cmath>

#include "lockstep/ops/activation_function.h"

namespace lockstep::reference {

inline double activation(ActivationFunction function, double x) {
  switch (function) {
    case ActivationFunction::none:
      return x;
    case ActivationFunction::relu:
      return x > 0 ? x : 0;
    case ActivationFunction::gelu:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ActivationFunction::silu:
      return x / (1 + std::exp(-x));
  }
  return NAN;
}

inline double activation_derivative(ActivationFunction function, double x) {
  switch (function) {
    case ActivationFunction::none:
      return 1;
    case ActivationFunction::relu:
      return x > 0 ? 1 : 0;
    case ActivationFunction::gelu: {
      const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    }
    case ActivationFunction::silu: {
      const double s = 1 / (1 + std::exp(-x));
      return s * (1 + x * (1 - s));
    }
  }
  return NAN;
}

}  // namespace lockstep::reference
