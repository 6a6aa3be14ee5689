// Activation functions, elementwise: an epilogue of the matmul, or an op of their own.
//   relu  max(z, 0)
//   silu  z / (1 + e^-z)                                      Elfwing, Uchibe and Doya, 2017; swish
//   gelu  z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3)))       Hendrycks and Gimpel, 2016, as in GPT-2
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/dtype.h"

namespace lockstep {

enum class ActivationFunction : std::uint8_t { none, relu, gelu, silu };
constexpr std::string_view name(ActivationFunction function) {
  constexpr std::string_view kNames[] = {"none", "relu", "gelu", "silu"};
  return kNames[static_cast<std::size_t>(function)];
}

/// The pass of an op over memory: out = f(x), or with dy out = f'(x) * dy, or out += that. `out` may be x in the former
/// case, and dy in the latter.
struct ActivationPass {
  ActivationFunction function = ActivationFunction::none;
  DType dtype = DType::fp32;
  std::int64_t n = 0;
  const void* x = nullptr;   // with relu and dy, this may be the result f(x) too
  const void* dy = nullptr;  // null: out = f(x)
  void* out = nullptr;
  bool accumulate = false;
};

}  // namespace lockstep
