#include "test/reference/matmul.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "test/reference/activation.h"
#include "test/reference/identity_layout.h"
#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {

template <typename T>
void matmul_forward(const MatmulDescription& d, const MatmulForward<T>& args) {
  for (Index m = 0; m < d.rows; ++m)
    for (Index o = 0; o < d.out_features; ++o) {
      double sum = d.bias ? double{args.bias[o]} : 0.0;
      for (Index i = 0; i < d.in_features; ++i)
        sum += double{args.x[m * d.in_features + i]} * args.weight[o * d.in_features + i];
      args.y[m * d.out_features + o] = static_cast<T>(activation(d.activation, sum));
      if (args.z) args.z[m * d.out_features + o] = static_cast<T>(sum);
    }
}

template <typename T>
void matmul_backward(const MatmulDescription& d, const MatmulBackward<T>& args) {
  const bool input_gradient = d.input_gradient && args.dx_mode != GradientMode::skip;
  std::vector<double> dz(static_cast<std::size_t>(d.rows * d.out_features));
  for (std::size_t i = 0; i < dz.size(); ++i)
    dz[i] = args.dy[i] * (args.z ? activation_derivative(d.activation, args.z[i]) : 1);
  const auto dz_at = [&](Index m, Index o) { return dz[static_cast<std::size_t>(m * d.out_features + o)]; };
  for (Index m = 0; input_gradient && m < d.rows; ++m)
    for (Index i = 0; i < d.in_features; ++i) {
      double sum = 0;
      for (Index o = 0; o < d.out_features; ++o) sum += dz_at(m, o) * args.weight[o * d.in_features + i];
      put(args.dx[m * d.in_features + i], sum, args.dx_mode);
    }
  if (args.parameter_mode == GradientMode::skip) return;
  for (Index o = 0; o < d.out_features; ++o) {
    double dbias = 0;
    for (Index m = 0; m < d.rows; ++m) dbias += dz_at(m, o);
    if (d.bias) put(args.dbias[o], dbias, args.parameter_mode);
    for (Index i = 0; i < d.in_features; ++i) {
      double sum = 0;
      for (Index m = 0; m < d.rows; ++m) sum += dz_at(m, o) * args.x[m * d.in_features + i];
      put(args.dweight[o * d.in_features + i], sum, args.parameter_mode);
    }
  }
}

template void matmul_forward(const MatmulDescription&, const MatmulForward<float>&);
template void matmul_forward(const MatmulDescription&, const MatmulForward<double>&);
template void matmul_backward(const MatmulDescription&, const MatmulBackward<float>&);
template void matmul_backward(const MatmulDescription&, const MatmulBackward<double>&);

namespace {

class ReferenceMatmul final : public Matmul {
 public:
  explicit ReferenceMatmul(const MatmulDescription& d)
      : d_(d), layout_(identity_layout(d.weight_layout, d.out_features * d.in_features)) {
    require(d.dtype == DType::fp32, ErrorCode::not_supported, "the reference matmul computes only in fp32");
  }
  OpMemoryRequirements memory_requirements() const override {
    const bool keeps_z = d_.activation != ActivationFunction::none && !d_.inference;
    return {.saved_bytes = keeps_z ? static_cast<std::size_t>(d_.rows * d_.out_features) * sizeof(float) : 0};
  }
  std::string describe() const override { return "reference: all fused"; }
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return layout_; }
  void run_forward(const Forward& a, const OpMemory& memory, Stream&) override {
    matmul_forward<float>(
        d_, {static_cast<const float*>(a.x), static_cast<const float*>(a.weight), static_cast<const float*>(a.bias),
             static_cast<float*>(a.y), static_cast<float*>(memory.saved)});
  }
  void run_backward(const Backward& a, const OpMemory& memory, Stream&) override {
    matmul_backward<float>(
        d_, {static_cast<const float*>(a.dy), static_cast<const float*>(a.x), static_cast<const float*>(a.weight),
             static_cast<const float*>(memory.saved), static_cast<float*>(a.dx), a.dx_mode,
             static_cast<float*>(a.dweight), static_cast<float*>(a.dbias), a.parameter_mode});
  }

 private:
  MatmulDescription d_;
  std::shared_ptr<const ParameterLayout> layout_;
};

}  // namespace

std::unique_ptr<Matmul> make_matmul(const MatmulDescription& description, const Context&) {
  return std::make_unique<ReferenceMatmul>(description);
}

}  // namespace lockstep::reference
