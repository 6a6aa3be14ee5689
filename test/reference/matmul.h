// Matmul with bias and activation, straight from the formula of lockstep/ops/matmul.h: y (M, out) = f(z), z = x (M, in)
// * weight (out, in)^T + bias (out).
#pragma once

#include "lockstep/ops/matmul.h"

namespace lockstep::reference {

template <typename T>
struct MatmulForward {
  const T* x = nullptr;
  const T* weight = nullptr;  // (out, in)
  const T* bias = nullptr;
  T* y = nullptr;
  T* z = nullptr;  // for backward; null: not kept
};

template <typename T>
struct MatmulBackward {
  const T* dy = nullptr;
  const T* x = nullptr;
  const T* weight = nullptr;
  const T* z = nullptr;  // read if there is an activation
  T* dx = nullptr;
  GradientMode dx_mode = GradientMode::overwrite;
  T* dweight = nullptr;
  T* dbias = nullptr;
  GradientMode parameter_mode = GradientMode::overwrite;
};

// T: float or double
template <typename T>
void matmul_forward(const MatmulDescription& d, const MatmulForward<T>& args);
template <typename T>
void matmul_backward(const MatmulDescription& d, const MatmulBackward<T>& args);

}  // namespace lockstep::reference
