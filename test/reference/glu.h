// Gated linear units, straight from the formulas of lockstep/ops/glu.h. `T` is the stored type (float: the
// ReferenceBackend; double: finite differences); all intermediate values are double.
#pragma once

#include <cmath>
#include <memory>
#include <string>

#include "lockstep/ops/glu.h"
#include "test/reference/activation.h"
#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {

template <typename T>
void glu_forward(const GluDescription& d, const T* x, T* y) {
  for (Index row = 0; row < d.rows; ++row)
    for (Index c = 0; c < d.width; ++c) {
      const double gate = x[2 * row * d.width + c], up = x[(2 * row + 1) * d.width + c];
      y[row * d.width + c] = static_cast<T>(activation(d.function, gate) * up);
    }
}

template <typename T>
void glu_backward(const GluDescription& d, const T* x, const T* dy, T* dx, GradientMode mode) {
  for (Index row = 0; row < d.rows; ++row)
    for (Index c = 0; c < d.width; ++c) {
      const Index of_gate = 2 * row * d.width + c, of_up = of_gate + d.width;
      const double gate = x[of_gate], up = x[of_up], gradient = dy[row * d.width + c];
      put(dx[of_gate], gradient * up * activation_derivative(d.function, gate), mode);
      put(dx[of_up], gradient * activation(d.function, gate), mode);
    }
}

class ReferenceGlu final : public Glu {
 public:
  explicit ReferenceGlu(const GluDescription& d) : d_(d) {}
  std::string describe() const override { return "reference"; }
  void run_forward(const Forward& a, const OpMemory&, Stream&) override {
    glu_forward(d_, static_cast<const float*>(a.x), static_cast<float*>(a.y));
  }
  void run_backward(const Backward& a, const OpMemory&, Stream&) override {
    glu_backward(d_, static_cast<const float*>(a.x), static_cast<const float*>(a.dy), static_cast<float*>(a.dx),
                 a.dx_mode);
  }

 private:
  GluDescription d_;
};

inline std::unique_ptr<Glu> make_glu(const GluDescription& d, const Context&) {
  return std::make_unique<ReferenceGlu>(d);
}

}  // namespace lockstep::reference
