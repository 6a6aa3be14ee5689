#include "test/reference/batch_norm.h"

#include <algorithm>
#include <cmath>

#include "lockstep/error.h"
#include "test/reference/ops.h"

namespace lockstep::reference {

template <typename T>
void batch_norm_statistics(const Shape& shape, const T* x, double* statistics) {
  const Index channels = shape[3];
  std::fill(statistics, statistics + 2 * channels, 0.0);
  for (Index i = 0; i < shape.n_elements(); ++i) {
    statistics[i % channels] += x[i];
    statistics[channels + i % channels] += double{x[i]} * x[i];
  }
}

template <typename T>
void batch_norm_finalize(const BatchNormDescription& d, const BatchNormFinalize<T>& args) {
  const Index channels = d.x[3];
  for (Index c = 0; c < channels; ++c) {
    const double mean = args.statistics[c] / d.n_rows;
    const double variance = std::max(0.0, args.statistics[channels + c] / d.n_rows - mean * mean);
    const double inverse_stddev = 1.0 / std::sqrt(variance + double{d.epsilon});
    args.scale_bias[c] = static_cast<T>(args.gamma[c] * inverse_stddev);
    args.scale_bias[channels + c] = static_cast<T>(args.beta[c] - mean * args.gamma[c] * inverse_stddev);
    args.mean_inverse_stddev[c] = static_cast<T>(mean);
    args.mean_inverse_stddev[channels + c] = static_cast<T>(inverse_stddev);
    if (!args.batch_statistics) continue;
    const double unbiased = variance * (d.n_rows > 1 ? d.n_rows / (d.n_rows - 1) : 1.0);
    put(args.batch_statistics[c], args.batch_statistics_weight * mean, args.batch_statistics_mode);
    put(args.batch_statistics[channels + c], args.batch_statistics_weight * unbiased, args.batch_statistics_mode);
  }
}

template <typename T>
void batch_norm_finalize_inference(const BatchNormDescription& d, const BatchNormFinalizeInference<T>& args) {
  const Index channels = d.x[3];
  for (Index c = 0; c < channels; ++c) {
    const double inverse_stddev = 1.0 / std::sqrt(double{args.running_variance[c]} + double{d.epsilon});
    args.scale_bias[c] = static_cast<T>(args.gamma[c] * inverse_stddev);
    args.scale_bias[channels + c] =
        static_cast<T>(args.beta[c] - double{args.running_mean[c]} * args.gamma[c] * inverse_stddev);
    if (!args.mean_inverse_stddev) continue;
    args.mean_inverse_stddev[c] = args.running_mean[c];
    args.mean_inverse_stddev[channels + c] = static_cast<T>(inverse_stddev);
  }
}

template <typename T>
void batch_norm_backward(const BatchNormDescription& d, const BatchNormBackward<T>& args) {
  const Index channels = d.x[3];
#pragma omp parallel for if (d.x.n_elements() >= kParallelFrom)
  for (Index row = 0; row < d.x.n_elements() / channels; ++row)
    for (Index c = 0; c < channels; ++c) {
      const Index i = row * channels + c;
      const double inverse_stddev = args.mean_inverse_stddev[channels + c];
      const double x_hat = (double{args.x[i]} - args.mean_inverse_stddev[c]) * inverse_stddev;
      const double mean_dz = args.sums ? args.sums[c] / d.n_rows : 0;
      const double mean_dz_x_hat = args.sums ? args.sums[channels + c] / d.n_rows : 0;
      args.dx[i] = static_cast<T>(args.gamma[c] * inverse_stddev * (args.dz[i] - mean_dz - x_hat * mean_dz_x_hat));
    }
  for (Index c = 0; c < channels && args.parameter_mode != GradientMode::skip; ++c) {
    put(args.dbeta[c], args.local_sums[c], args.parameter_mode);
    put(args.dgamma[c], args.local_sums[channels + c], args.parameter_mode);
  }
}

template void batch_norm_statistics(const Shape&, const float*, double*);
template void batch_norm_statistics(const Shape&, const double*, double*);
template void batch_norm_finalize(const BatchNormDescription&, const BatchNormFinalize<float>&);
template void batch_norm_finalize(const BatchNormDescription&, const BatchNormFinalize<double>&);
template void batch_norm_finalize_inference(const BatchNormDescription&, const BatchNormFinalizeInference<float>&);
template void batch_norm_finalize_inference(const BatchNormDescription&, const BatchNormFinalizeInference<double>&);
template void batch_norm_backward(const BatchNormDescription&, const BatchNormBackward<float>&);
template void batch_norm_backward(const BatchNormDescription&, const BatchNormBackward<double>&);

namespace {

class ReferenceBatchNorm final : public BatchNorm {
 public:
  explicit ReferenceBatchNorm(const BatchNormDescription& d) : d_(d) {
    require(d.dtype == DType::fp32 && d.layout == Layout::nhwc, ErrorCode::not_supported,
            "the reference batch norm computes only in fp32 and nhwc");
    require(d.n_rows > 0, ErrorCode::internal, "a batch norm over {} rows: at least one row is needed", d.n_rows);
  }
  std::string describe() const override { return "reference: all fused"; }
  void run_finalize(const Finalize& a, const OpMemory&, Stream&) override {
    batch_norm_finalize<float>(d_, {a.statistics.as<double>(), a.gamma, a.beta, a.scale_bias, a.mean_inverse_stddev,
                                    a.batch_statistics, a.batch_statistics_weight, a.batch_statistics_mode});
  }
  void run_finalize_inference(const FinalizeInference& a, const OpMemory&, Stream&) override {
    batch_norm_finalize_inference<float>(
        d_, {a.running_mean, a.running_variance, a.gamma, a.beta, a.scale_bias, a.mean_inverse_stddev});
  }
  void run_backward(const Backward& a, const OpMemory&, Stream&) override {
    batch_norm_backward<float>(d_, {a.sums.as<double>(), a.local_sums.as<double>(), static_cast<const float*>(a.dz),
                                    static_cast<const float*>(a.x), a.gamma, a.mean_inverse_stddev,
                                    static_cast<float*>(a.dx), a.dgamma, a.dbeta, a.parameter_mode});
  }

 private:
  BatchNormDescription d_;
};

}  // namespace

std::unique_ptr<BatchNorm> make_batch_norm(const BatchNormDescription& description, const Context&) {
  return std::make_unique<ReferenceBatchNorm>(description);
}

}  // namespace lockstep::reference
