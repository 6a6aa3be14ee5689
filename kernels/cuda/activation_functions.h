// Activation functions and their derivatives in kernels.
#pragma once

#include "kernels/cuda/base/numbers.h"
#include "lockstep/error.h"
#include "lockstep/ops/activation_function.h"

namespace lockstep::cuda {

/// The reciprocal is approximate, with an error of one bit: an exact one takes a third of the instructions of SwiGLU,
/// which would then wait for them and not for memory.
__device__ inline float sigmoid(float x) {
  const float divisor = 1.0f + expf(-x);
#ifdef __CUDA_ARCH__
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(divisor));
  return reciprocal;
#else
  return 1.0f / divisor;
#endif
}

struct Relu {
  static __device__ float value(float x) { return x < 0 ? 0.0f : x; }
  static __device__ float derivative(float x) { return x > 0 ? 1.0f : 0.0f; }
};
struct Silu {
  static __device__ float value(float x) { return x * sigmoid(x); }
  static __device__ float derivative(float x) {
    const float s = sigmoid(x);
    return s + x * s * (1 - s);
  }
};
struct Gelu {
  static __device__ float inner(float x) { return 0.7978845608028654f * (x + 0.044715f * x * x * x); }
  static __device__ float value(float x) { return 0.5f * x * (1 + tanhf(inner(x))); }
  static __device__ float derivative(float x) {
    const float t = tanhf(inner(x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608028654f * (1 + 3 * 0.044715f * x * x);
  }
};

/// Calls call(F{}, T*) with the function and the type.
template <typename Call>
void with_function(ActivationFunction function, DType dtype, const Call& call) {
  dispatch(dtype, [&](auto* of_type) {
    switch (function) {
      case ActivationFunction::relu:
        return call(Relu{}, of_type);
      case ActivationFunction::gelu:
        return call(Gelu{}, of_type);
      case ActivationFunction::silu:
        return call(Silu{}, of_type);
      case ActivationFunction::none:
        fail(ErrorCode::internal, "no kernel computes the activation function {}", name(function));
    }
  });
}

}  // namespace lockstep::cuda
