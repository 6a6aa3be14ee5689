// What cuBLASLt does on a device (kernels/cuda/matmul_bare.h), as plain loops in double, rounded once.
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/base/numbers.h"
#include "kernels/cuda/matmul_bare.h"
#include "lockstep/ops/activation_function.h"
#include "test/support/cuda_on_host/launches.h"

namespace lockstep::cuda {
namespace {

float to_float(__nv_fp8_e4m3 value) { return static_cast<float>(value); }
float to_float(__nv_fp8_e5m2 value) { return static_cast<float>(value); }
using cuda::to_float;

class HostProduct final : public PlannedProduct {
 public:
  explicit HostProduct(const ProductDescription& d) : d_(d) {}
  std::size_t workspace_bytes() const override { return 64; }
  std::string algorithm() const override { return "loops"; }
  /// Pretends that cuBLASLt has no kernel for some activations, so that the caller's pass is tested too.
  bool activates() const override {
    return (d_.activation == ActivationFunction::relu || d_.activation == ActivationFunction::gelu) &&
           d_.columns % 8 == 0;
  }

  void run(const Arguments& args, void* workspace, Stream&) override {
    cuda_fibers::record_call("cublaslt", workspace);
    dispatch(d_.d_dtype, [&](auto* result) {
      using D = std::remove_pointer_t<decltype(result)>;
      if (d_.dtype != DType::e4m3)
        dispatch(d_.dtype, [&](auto* type) {
          using T = std::remove_pointer_t<decltype(type)>;
          multiply<T, T, T, D>(args);
        });
      else if (d_.a_is_e5m2)
        multiply<__nv_fp8_e5m2, __nv_fp8_e4m3, D, D>(args);
      else
        multiply<__nv_fp8_e4m3, __nv_fp8_e4m3, D, D>(args);
    });
  }

 private:
  template <typename A, typename B, typename Bias, typename D>
  void multiply(const Arguments& args) const {
    const A* a = static_cast<const A*>(args.a);
    const B* b = static_cast<const B*>(args.b);
    D* const d = static_cast<D*>(args.d);
    const double scale = args.a_scale == nullptr ? 1 : double{*args.a_scale} * double{*args.b_scale};
    for (std::int64_t row = 0; row < d_.rows; ++row)
      for (std::int64_t column = 0; column < d_.columns; ++column) {
        double sum = 0;
        for (std::int64_t i = 0; i < d_.inner; ++i)
          sum += double{to_float(a[d_.a_is_transposed ? i * d_.rows + row : row * d_.inner + i])} *
                 double{to_float(b[d_.b_is_transposed ? column * d_.inner + i : i * d_.columns + column])};
        sum *= scale;
        if (d_.bias) sum += to_float(static_cast<const Bias*>(args.bias)[column]);
        if (activates()) {
          if (d_.keeps_z) static_cast<D*>(args.z)[row * d_.columns + column] = from_float<D>(static_cast<float>(sum));
          if (d_.activation == ActivationFunction::relu)
            sum = std::max(sum, 0.0);
          else
            sum *= 0.5 * (1 + std::tanh(0.79788456080286535588 * (sum + 0.044715 * sum * sum * sum)));
        }
        D& target = d[row * (d_.d_stride > 0 ? d_.d_stride : d_.columns) + column];
        if (args.accumulate) sum += to_float(target);
        target = from_float<D>(static_cast<float>(sum));
      }
  }

  ProductDescription d_;
};

}  // namespace

std::unique_ptr<PlannedProduct> plan_product(const ProductDescription& product, const CudaContext&) {
  return std::make_unique<HostProduct>(product);
}

}  // namespace lockstep::cuda
