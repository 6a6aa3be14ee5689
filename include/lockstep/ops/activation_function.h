// Activation functions, elementwise: an epilogue of the matmul, or an op of their own.
//   relu  max(z, 0)
//   gelu  z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3)))       Hendrycks and Gimpel, 2016, as in GPT-2
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

enum class ActivationFunction : std::uint8_t { none, relu, gelu };
constexpr std::string_view name(ActivationFunction function) {
  return function == ActivationFunction::none ? "none" : function == ActivationFunction::relu ? "relu" : "gelu";
}

}  // namespace lockstep
