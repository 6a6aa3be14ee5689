// Matmul with a weight in NF4, straight from the formulas of lockstep/ops/nf4_matmul.h and lockstep/nf4.h. `T` is the
// stored type (float: the ReferenceBackend; double: finite differences); sums are double. `round` rounds to the type of
// x.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/nf4_matmul.h"
#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {

/// The weight (out, in) in fp32.
inline std::vector<float> expand_nf4(const Nf4MatmulDescription& d, const std::byte* weight,
                                     const float* scale_values) {
  std::vector<float> out;
  const Nf4Layout layout = Nf4Layout::of(d.matrices, d.in_features);
  for (const Nf4Matrix& m : layout.matrices)
    for (Index e = 0; e < m.rows * d.in_features; ++e) {
      const auto number = [&](std::size_t at, Index i) {
        float value = 0;
        std::memcpy(&value, weight + at + 4 * static_cast<std::size_t>(i), sizeof value);
        return value;
      };
      const Index block = e / 64;
      const auto scale_code = static_cast<unsigned>(weight[m.scale_codes + static_cast<std::size_t>(block)]);
      const float scaled = scale_values[scale_code] * number(m.scales_of_scales, block / 256);
      const float scale = scaled + number(m.offset, 0);
      const auto byte = static_cast<unsigned>(weight[m.codes + static_cast<std::size_t>(e / 2)]);
      out.push_back(kNf4Values[e % 2 == 0 ? byte >> 4 : byte & 15u] * scale);
    }
  return out;
}

template <typename T>
void nf4_forward(const Nf4MatmulDescription& d, const std::vector<float>& weight, const T* x, const T* bias, T* y) {
  const Index out = d.out_features();
  for (Index row = 0; row < d.rows; ++row)
    for (Index o = 0; o < out; ++o) {
      double sum = bias != nullptr ? double{bias[o]} : 0;
      for (Index i = 0; i < d.in_features; ++i)
        sum += double{x[row * d.in_features + i]} * double{weight[static_cast<std::size_t>(o * d.in_features + i)]};
      y[row * out + o] = static_cast<T>(sum);
    }
}

template <typename T>
void nf4_backward(const Nf4MatmulDescription& d, const std::vector<float>& weight, const T* dy, T* dx,
                  GradientMode mode) {
  const Index out = d.out_features();
  for (Index row = 0; row < d.rows; ++row)
    for (Index i = 0; i < d.in_features; ++i) {
      double sum = 0;
      for (Index o = 0; o < out; ++o)
        sum += double{dy[row * out + o]} * double{weight[static_cast<std::size_t>(o * d.in_features + i)]};
      put(dx[row * d.in_features + i], sum, mode);
    }
}

class ReferenceNf4Matmul final : public Nf4Matmul {
 public:
  explicit ReferenceNf4Matmul(const Nf4MatmulDescription& d) : d_(d) {}
  std::string describe() const override { return "reference"; }
  void run_forward(const Forward& a, const OpMemory&, Stream&) override {
    nf4_forward(d_, expand_nf4(d_, a.weight, a.scale_values), static_cast<const float*>(a.x),
                static_cast<const float*>(a.bias), static_cast<float*>(a.y));
  }
  void run_backward(const Backward& a, const OpMemory&, Stream&) override {
    if (a.dx_mode == GradientMode::skip || !d_.input_gradient) return;
    nf4_backward(d_, expand_nf4(d_, a.weight, a.scale_values), static_cast<const float*>(a.dy),
                 static_cast<float*>(a.dx), a.dx_mode);
  }

 private:
  Nf4MatmulDescription d_;
};

inline std::unique_ptr<Nf4Matmul> make_nf4_matmul(const Nf4MatmulDescription& d, const Context&) {
  return std::make_unique<ReferenceNf4Matmul>(d);
}

}  // namespace lockstep::reference
