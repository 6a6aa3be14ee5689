// Batch norm, split into parts that can be fused with the neighbouring convolutions. The producer of x computes the
// sums, which may be all-reduced over ranks in between; `finalize` computes scale and bias; the consumer applies them
// (normalization.h). Formulas: Ioffe and Szegedy, "Batch Normalization", 2015, algorithm 1. The variance is biased in
// the scale and unbiased in batch_statistics, as in PyTorch.
#pragma once

#include <cmath>

#include "lockstep/dtype.h"
#include "lockstep/host_device.h"
#include "lockstep/op.h"
#include "lockstep/shape.h"

namespace lockstep {

struct BatchNormDescription {
  using Op = class BatchNorm;
  static constexpr std::string_view kName = "batch_norm";

  Shape x;  // (N, H, W, C)
  DType dtype = DType::fp32;
  Layout layout = Layout::nhwc;
  double n_rows = 0;  // elements per channel in the sums: N*H*W, added over all ranks if synchronised
  float epsilon = 1e-5f;
};

class BatchNorm : public Op {
 public:
  struct Finalize {
    TypedSums statistics{};                // (2, C): sum x, sum x^2
    const float* gamma = nullptr;          // (C)
    const float* beta = nullptr;           // (C)
    float* scale_bias = nullptr;           // (2, C), overwritten: gamma / stddev, beta - mean * gamma / stddev
    float* mean_inverse_stddev = nullptr;  // (2, C), overwritten
    float* batch_statistics = nullptr;     // (2, C): weight * (mean, unbiased variance); null: not computed
    float batch_statistics_weight = 1.0f;  // 1 / (ranks * micro-batches)
    GradientMode batch_statistics_mode = GradientMode::overwrite;
    void* low_precision_scale_bias = nullptr;  // (2, C), overwritten: scale_bias in the type of x; null: not computed
  };
  struct FinalizeInference {
    const float* running_mean = nullptr;      // (C)
    const float* running_variance = nullptr;  // (C)
    const float* gamma = nullptr;
    const float* beta = nullptr;
    float* scale_bias = nullptr;               // (2, C), overwritten
    float* mean_inverse_stddev = nullptr;      // (2, C), overwritten, for a backward pass; null: not computed
    void* low_precision_scale_bias = nullptr;  // (2, C), overwritten: scale_bias in the type of x; null: not computed
  };
  struct Backward {
    TypedSums sums{};        // (2, C): sum dz, sum dz * x_hat over n_rows rows; null after finalize_inference, whose
                             // statistics do not depend on x
    TypedSums local_sums{};  // the same over this rank's rows only; equal to `sums` unless synchronised
    const void* dz = nullptr;
    const void* x = nullptr;
    const float* gamma = nullptr;
    const float* mean_inverse_stddev = nullptr;  // (2, C)
    void* dx = nullptr;                          // overwritten; may be dz
    float* dgamma = nullptr;                     // from local_sums, so that the sum over ranks is the gradient
    float* dbeta = nullptr;
    GradientMode parameter_mode = GradientMode::overwrite;
  };
  /// Two norms of the same description, such as the two whose results a residual block adds.
  struct FinalizeBoth {
    Finalize first, second;
  };
  /// Both have the same dz, and neither dx may be dz.
  struct BackwardBoth {
    Backward first, second;
  };
  void finalize(const Finalize& args, const OpMemory& memory, Stream& stream) {
    submit("batch_norm.finalize", &BatchNorm::run_finalize, args, memory, stream);
  }
  void finalize_inference(const FinalizeInference& args, const OpMemory& memory, Stream& stream) {
    submit("batch_norm.finalize_inference", &BatchNorm::run_finalize_inference, args, memory, stream);
  }
  void backward(const Backward& args, const OpMemory& memory, Stream& stream) {
    submit("batch_norm.backward", &BatchNorm::run_backward, args, memory, stream);
  }

  void finalize_both(const FinalizeBoth& args, const OpMemory& memory, Stream& stream) {
    submit("batch_norm.finalize_both", &BatchNorm::run_finalize_both, args, memory, stream);
  }
  void backward_both(const BackwardBoth& args, const OpMemory& memory, Stream& stream) {
    submit("batch_norm.backward_both", &BatchNorm::run_backward_both, args, memory, stream);
  }

 private:
  virtual void run_finalize(const Finalize& args, const OpMemory& memory, Stream& stream) = 0;
  virtual void run_finalize_inference(const FinalizeInference& args, const OpMemory& memory, Stream& stream) = 0;
  virtual void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) = 0;
  virtual void run_finalize_both(const FinalizeBoth& args, const OpMemory& memory, Stream& stream) {
    run_finalize(args.first, memory, stream);
    run_finalize(args.second, memory, stream);
  }
  virtual void run_backward_both(const BackwardBoth& args, const OpMemory& memory, Stream& stream) {
    run_backward(args.first, memory, stream);
    run_backward(args.second, memory, stream);
  }
};

/// Overwrites a parameter's gradient or a statistic with `value`, or adds to it.
LOCKSTEP_HOST_DEVICE inline void put_by_mode(float& target, double value, GradientMode mode) {
  target = static_cast<float>(mode == GradientMode::accumulate ? target + value : value);
}

/// The fp32 results of finalize() for one of C channels, with n = n_rows.
LOCKSTEP_HOST_DEVICE inline void finalize_channel(const BatchNorm::Finalize& args, std::int64_t n_channels,
                                                  std::int64_t c, double n, double epsilon) {
  const double sum = args.statistics[c], mean = sum / n;
  const double deviations = args.statistics[n_channels + c] - mean * sum;  // sum (x - mean)^2
  const double variance = deviations < 0 ? 0 : deviations / n;  // rounding may make it negative; NaN stays NaN
  const double inverse_stddev = 1.0 / std::sqrt(variance + epsilon);
  const double scale = args.gamma[c] * inverse_stddev;
  args.scale_bias[c] = static_cast<float>(scale);
  args.scale_bias[n_channels + c] = static_cast<float>(args.beta[c] - mean * scale);
  args.mean_inverse_stddev[c] = static_cast<float>(mean);
  args.mean_inverse_stddev[n_channels + c] = static_cast<float>(inverse_stddev);
  if (args.batch_statistics == nullptr || args.batch_statistics_mode == GradientMode::skip) return;
  const double weight = args.batch_statistics_weight;
  const double unbiased = n > 1 ? variance * n / (n - 1.0) : variance;
  put_by_mode(args.batch_statistics[c], weight * mean, args.batch_statistics_mode);
  put_by_mode(args.batch_statistics[n_channels + c], weight * unbiased, args.batch_statistics_mode);
}
LOCKSTEP_HOST_DEVICE inline void finalize_channel(const BatchNorm::FinalizeInference& args, std::int64_t n_channels,
                                                  std::int64_t c, double epsilon) {
  const double stddev = std::sqrt(args.running_variance[c] + epsilon);
  const double scale = args.gamma[c] / stddev;
  args.scale_bias[c] = static_cast<float>(scale);
  args.scale_bias[n_channels + c] = static_cast<float>(args.beta[c] - args.running_mean[c] * scale);
  if (args.mean_inverse_stddev == nullptr) return;
  args.mean_inverse_stddev[c] = args.running_mean[c];
  args.mean_inverse_stddev[n_channels + c] = static_cast<float>(1.0 / stddev);
}

}  // namespace lockstep
