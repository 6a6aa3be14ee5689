// SwiGLU, straight from the formulas of lockstep/ops/swiglu.h. `T` is the stored type (float: the ReferenceBackend;
// double: finite differences); all intermediate values are double.
#pragma once

#include <cmath>
#include <memory>
#include <string>

#include "lockstep/ops/swiglu.h"
#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {

inline double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

template <typename T>
void swiglu_forward(const SwiGluDescription& d, const T* x, T* y) {
  for (Index row = 0; row < d.rows; ++row)
    for (Index c = 0; c < d.width; ++c) {
      const double gate = x[2 * row * d.width + c], up = x[(2 * row + 1) * d.width + c];
      y[row * d.width + c] = static_cast<T>(gate * sigmoid(gate) * up);
    }
}

template <typename T>
void swiglu_backward(const SwiGluDescription& d, const T* x, const T* dy, T* dx, GradientMode mode) {
  for (Index row = 0; row < d.rows; ++row)
    for (Index c = 0; c < d.width; ++c) {
      const Index of_gate = 2 * row * d.width + c, of_up = of_gate + d.width;
      const double gate = x[of_gate], up = x[of_up], gradient = dy[row * d.width + c], s = sigmoid(gate);
      put(dx[of_gate], gradient * up * s * (1 + gate * (1 - s)), mode);
      put(dx[of_up], gradient * gate * s, mode);
    }
}

class ReferenceSwiGlu final : public SwiGlu {
 public:
  explicit ReferenceSwiGlu(const SwiGluDescription& d) : d_(d) {}
  std::string describe() const override { return "reference"; }
  void run_forward(const Forward& a, const OpMemory&, Stream&) override {
    swiglu_forward(d_, static_cast<const float*>(a.x), static_cast<float*>(a.y));
  }
  void run_backward(const Backward& a, const OpMemory&, Stream&) override {
    swiglu_backward(d_, static_cast<const float*>(a.x), static_cast<const float*>(a.dy), static_cast<float*>(a.dx),
                    a.dx_mode);
  }

 private:
  SwiGluDescription d_;
};

inline std::unique_ptr<SwiGlu> make_swiglu(const SwiGluDescription& d, const Context&) {
  return std::make_unique<ReferenceSwiGlu>(d);
}

}  // namespace lockstep::reference
