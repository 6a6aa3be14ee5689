// Max and average pooling with a pending normalisation of the input, straight from the formulas of
// lockstep/ops/pool2d.h. The gradient of a maximum goes to the first of several equal elements, reading the window row
// by row (as in PyTorch).
#pragma once

#include "lockstep/ops/pool2d.h"
#include "test/reference/normalization.h"

namespace lockstep::reference {

template <typename T>
struct Pool2dForward {
  const T* x = nullptr;  // (N, H, W, C)
  T* y = nullptr;        // (N, H', W', C), overwritten
  PendingForward<T> normalization;
};

template <typename T>
struct Pool2dBackward {
  const T* dy = nullptr;
  const T* added = nullptr;  // another gradient of y, or null
  const T* x = nullptr;
  T* dx = nullptr;
  GradientMode dx_mode = GradientMode::overwrite;
  PendingForward<T> normalization;
  PendingBackward<T> gradient;
};

// T: float or double
template <typename T>
void pool2d_forward(const Pool2dDescription& d, const Pool2dForward<T>& args);
template <typename T>
void pool2d_backward(const Pool2dDescription& d, const Pool2dBackward<T>& args);

}  // namespace lockstep::reference
