// Batch norm's own parts (lockstep/ops/batch_norm.h): statistics to scale and bias, and dz with its sums to dx.
// Its sums and its application are passes of the neighbouring ops (normalization.h).
#include <memory>

#include "kernels/cpu/base/context.h"
#include "kernels/cpu/base/simd.h"
#include "kernels/cpu/normalization.h"
#include "lockstep/ops/batch_norm.h"

namespace lockstep::cpu {

template <typename E>
struct BatchNormBackwardTask {
  const float* dz_factor = nullptr;  // (width), like the three below
  const float* x_factor = nullptr;
  const float* mean = nullptr;
  const float* constant = nullptr;
  const E* dz = nullptr;
  const E* x = nullptr;
  E* dx = nullptr;
};

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/batch_norm_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

constexpr int kBackwardTensors = 3;
constexpr int kCoefficients = 4;

class CpuBatchNorm final : public CpuOp<BatchNormDescription> {
 public:
  CpuBatchNorm(const BatchNormDescription& d, const CpuContext& context)
      : PlannedOp(d, context),
        channels_(d.x[3]),
        tiling_({d.x[0], d.x[1] * d.x[2], d.x[3], d.layout, d.dtype}, context, kBackwardTensors) {}

  OpMemoryRequirements memory_requirements() const override {
    return {.backward_workspace_bytes = static_cast<std::size_t>(kCoefficients * tiling_.width) * sizeof(float)};
  }

  std::string describe() const override {
    return "own kernels: scale and bias in fp64; backward one pass over dz and x";
  }

  void run_finalize(const Finalize& args, const OpMemory&, Stream&) override {
    for (std::int64_t c = 0; c < channels_; ++c) finalize_channel(args, channels_, c, d_.n_rows, d_.epsilon);
    narrow(args.scale_bias, args.low_precision_scale_bias);
  }
  void run_finalize_inference(const FinalizeInference& args, const OpMemory&, Stream&) override {
    for (std::int64_t c = 0; c < channels_; ++c) finalize_channel(args, channels_, c, d_.epsilon);
    narrow(args.scale_bias, args.low_precision_scale_bias);
  }

  // dx = gamma * inverse_stddev * (dz - sum dz / n - x_hat * sum(dz * x_hat) / n)
  void run_backward(const Backward& args, const OpMemory& memory, Stream&) override {
    const std::int64_t width = tiling_.width;
    float* dz_factor = static_cast<float*>(memory.workspace);
    float* x_factor = dz_factor + width;
    float* mean = x_factor + width;
    float* constant = mean + width;
    for (std::int64_t i = 0; i < width; ++i) {
      const std::int64_t c = i % channels_;
      const double inverse_stddev = args.mean_inverse_stddev[channels_ + c];
      const double scale = args.gamma[c] * inverse_stddev;
      dz_factor[i] = static_cast<float>(scale);
      const double sum = args.sums.data ? args.sums[c] : 0, sum_x_hat = args.sums.data ? args.sums[channels_ + c] : 0;
      x_factor[i] = static_cast<float>(-scale * inverse_stddev * sum_x_hat / d_.n_rows);
      mean[i] = args.mean_inverse_stddev[c];
      constant[i] = static_cast<float>(-scale * sum / d_.n_rows);
    }
    if (args.parameter_mode != GradientMode::skip) {
      for (std::int64_t c = 0; c < channels_; ++c) {
        put_by_mode(args.dbeta[c], args.local_sums[c], args.parameter_mode);
        put_by_mode(args.dgamma[c], args.local_sums[channels_ + c], args.parameter_mode);
      }
    }
    with_elements(d_.dtype, [&]<typename E>(E) {
      const BatchNormBackwardTask<E> task{.dz_factor = dz_factor,
                                          .x_factor = x_factor,
                                          .mean = mean,
                                          .constant = constant,
                                          .dz = static_cast<const E*>(args.dz),
                                          .x = static_cast<const E*>(args.x),
                                          .dx = static_cast<E*>(args.dx)};
      run_ranges(tiling_.parts, tiling_.units, [&](Range range) {
        LOCKSTEP_DISPATCH(batch_norm_backward<E>)(task, tiling_, range);
      });
    });
  }

 private:
  void narrow(const float* scale_bias, void* target) const {
    if (target == nullptr) return;
    for (std::int64_t i = 0; i < 2 * channels_; ++i) {
      if (d_.dtype == DType::fp32)
        static_cast<float*>(target)[i] = scale_bias[i];
      else
        static_cast<Bf16*>(target)[i] = to_bf16(scale_bias[i]);
    }
  }

  std::int64_t channels_;
  Tiling tiling_;
};

}  // namespace

std::unique_ptr<BatchNorm> make_batch_norm(const BatchNormDescription& d, const CpuContext& context) {
  require_float_or_bf16(d.dtype, "batch norm");
  require(d.x.rank() == 4 && d.x.n_elements() > 0, ErrorCode::op_description,
          "batch norm needs an input (N, H, W, C) that is not empty, not {}", d.x.text());
  require(d.layout == Layout::nhwc || d.x[3] % 16 == 0, ErrorCode::op_description,
          "channel blocks of 16 need a multiple of 16 channels, but {} has {}", d.x.text(), d.x[3]);
  return std::make_unique<CpuBatchNorm>(d, context);
}

}  // namespace lockstep::cpu
