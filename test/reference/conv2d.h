// Convolution with a pending normalisation of its input, straight from the formulas of lockstep/ops/conv2d.h. Weights
// (K, C, R, S).
#pragma once

#include "lockstep/ops/conv2d.h"
#include "test/reference/normalization.h"

namespace lockstep::reference {

template <typename T>
struct Conv2dForward {
  const T* x = nullptr;          // (N, H, W, C)
  const T* weight = nullptr;     // (K, C, R, S)
  T* y = nullptr;                // (N, H', W', K), overwritten
  double* statistics = nullptr;  // (2, K), overwritten if the description asks for it
  PendingForward<T> normalization;
};

template <typename T>
struct Conv2dBackward {
  const T* dy = nullptr;
  const T* x = nullptr;
  const T* weight = nullptr;
  T* dweight = nullptr;
  GradientMode dweight_mode = GradientMode::overwrite;
  T* dx = nullptr;
  GradientMode dx_mode = GradientMode::overwrite;
  PendingForward<T> normalization;
  PendingBackward<T> gradient;
};

// T: float or double
template <typename T>
void conv2d_forward(const Conv2dDescription& d, const Conv2dForward<T>& args);
template <typename T>
void conv2d_backward(const Conv2dDescription& d, const Conv2dBackward<T>& args);

}  // namespace lockstep::reference
