// Activation functions, elementwise: an epilogue of the matmul, or an op of their own.
//   relu  max(z, 0)
//   silu  z / (1 + e^-z)                                      Elfwing, Uchibe and Doya, 2017; swish
//   gelu  z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3)))       Hendrycks and Gimpel, 2016, as in GPT-2
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

enum class ActivationFunction : std::uint8_t { none, relu, gelu, silu };
constexpr std::string_view name(ActivationFunction function) {
  switch (function) {
    case ActivationFunction::none:
      return "none";
    case ActivationFunction::relu:
      return "relu";
    case ActivationFunction::gelu:
      return "gelu";
    case ActivationFunction::silu:
      return "silu";
  }
  return "?";
}

}  // namespace lockstep
