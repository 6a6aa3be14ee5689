// RMS norm (lockstep/ops/rms_norm.h). Each block computes one row and reads it twice, the second time from the caches.
// `saved` holds 1 / rms of each row. dweight has two stages: a thread adds up a column of a block of rows, and a second
// kernel adds these sums in their order. Blocks of rows depend on the number of rows alone, so dweight has the same
// bits on every device.
// Bytes moved, where E is the size of a row: forward 3E, or 5E with a residual; backward 3E or 4E for ds, and 4E for
// dweight.
#include <algorithm>
#include <memory>

#include "kernels/cuda/base/block_sum.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/numbers.h"
#include "lockstep/ops/rms_norm.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;

/// If `residual` is null, s is x and is not written. If `inverse_rms` is null, it is not kept.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    rms_norm_forward(const T* x, const T* residual, const float* weight, T* s, T* y, float* inverse_rms,
                     std::int64_t width, float epsilon, float offset) {
  const std::int64_t begin = std::int64_t{blockIdx.x} * width;
  float squares = 0;
  for (std::int64_t c = threadIdx.x; c < width; c += kThreads) {
    T value = x[begin + c];
    if (residual != nullptr) {
      value = from_float<T>(to_float(value) + to_float(residual[begin + c]));
      s[begin + c] = value;
    }
    squares += to_float(value) * to_float(value);
  }
  const double mean = block_sum<kThreads>(double{squares}) / static_cast<double>(width);
  const auto inverse = static_cast<float>(1.0 / sqrt(mean + double{epsilon}));
  if (inverse_rms != nullptr && threadIdx.x == 0) inverse_rms[blockIdx.x] = inverse;
  const T* const normalized = residual != nullptr ? s : x;
  for (std::int64_t c = threadIdx.x; c < width; c += kThreads)  // reads only what this thread has written
    y[begin + c] = from_float<T>(to_float(normalized[begin + c]) * inverse * (offset + weight[c]));
}

/// If `added` is null, nothing is added.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    rms_norm_backward(const T* dy, const T* s, const float* weight, const T* added, const float* inverse_rms, T* ds,
                      bool accumulate, std::int64_t width, float offset) {
  const std::int64_t begin = std::int64_t{blockIdx.x} * width;
  const float inverse = inverse_rms[blockIdx.x];
  float products = 0;
  for (std::int64_t c = threadIdx.x; c < width; c += kThreads)
    products += (offset + weight[c]) * to_float(dy[begin + c]) * (to_float(s[begin + c]) * inverse);
  const auto mean = static_cast<float>(block_sum<kThreads>(double{products}) / static_cast<double>(width));
  for (std::int64_t c = threadIdx.x; c < width; c += kThreads) {
    float gradient =
        inverse * ((offset + weight[c]) * to_float(dy[begin + c]) - to_float(s[begin + c]) * inverse * mean);
    if (added != nullptr) gradient += to_float(added[begin + c]);
    ds[begin + c] = from_float<T>(accumulate ? to_float(ds[begin + c]) + gradient : gradient);
  }
}

/// partial (n_blocks, width) gets the sums of block of rows blockIdx.y.
template <typename T>
__global__ void __launch_bounds__(kThreads) sum_dweight(const T* dy, const T* s, const float* inverse_rms,
                                                        float* partial, std::int64_t n_rows, std::int64_t width) {
  const std::int64_t c = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= width) return;
  const std::int64_t begin = n_rows * blockIdx.y / gridDim.y, end = n_rows * (blockIdx.y + 1) / gridDim.y;
  float sum = 0;
  for (std::int64_t row = begin; row < end; ++row)
    sum += to_float(dy[row * width + c]) * (to_float(s[row * width + c]) * inverse_rms[row]);
  partial[blockIdx.y * width + c] = sum;
}

__global__ void __launch_bounds__(kThreads)
    add_partial(const float* partial, float* dweight, bool accumulate, std::int64_t n_blocks, std::int64_t width) {
  const std::int64_t c = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= width) return;
  double sum = accumulate ? double{dweight[c]} : 0.0;
  for (std::int64_t block = 0; block < n_blocks; ++block) sum += double{partial[block * width + c]};
  dweight[c] = static_cast<float>(sum);
}

class CudaRmsNorm final : public CudaOp<RmsNormDescription> {
 public:
  CudaRmsNorm(const RmsNormDescription& d, const CudaContext& context)
      : PlannedOp(d, context), n_blocks_(std::min<std::int64_t>(kMaxBlocks, (d.rows + kMinRows - 1) / kMinRows)) {}

  OpMemoryRequirements memory_requirements() const override {
    if (d_.inference) return {};
    return {.backward_workspace_bytes = static_cast<std::size_t>(n_blocks_ * d_.width) * sizeof(float),
            .saved_bytes = static_cast<std::size_t>(d_.rows) * sizeof(float)};
  }
  std::string describe() const override {
    return fmt::format("own kernels{}", d_.residual ? "; sum of the residual stream fused" : "");
  }

  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override {
    dispatch(d_.dtype, [&]<typename T>(T*) {
      launch(rms_norm_forward<T>, grid_of_rows(d_.residual ? 4 : 2), stream, static_cast<const T*>(args.x),
             d_.residual ? static_cast<const T*>(args.residual) : nullptr, args.weight, static_cast<T*>(args.s),
             static_cast<T*>(args.y), d_.inference ? nullptr : static_cast<float*>(memory.saved), d_.width, d_.epsilon,
             d_.weight_offset);
    });
  }

  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override {
    require(!d_.inference, ErrorCode::internal, "an RMS norm was planned for inference, and backward was called");
    const auto* const inverse_rms = static_cast<const float*>(memory.saved);
    dispatch(d_.dtype, [&]<typename T>(T*) {
      const auto* const dy = static_cast<const T*>(args.dy);
      const auto* const s = static_cast<const T*>(args.s);
      if (args.dweight_mode != GradientMode::skip) {  // must come before ds, which may overwrite dy
        auto* const partial = static_cast<float*>(memory.workspace);
        const auto columns = static_cast<unsigned>((d_.width + kThreads - 1) / kThreads);
        launch(sum_dweight<T>,
               {.blocks = columns,
                .threads = kThreads,
                .blocks_y = static_cast<unsigned>(n_blocks_),
                .work = {.kind = "columns",
                         .bytes = moved_bytes(2, d_.rows, d_.width, sizeof(T)),
                         .steps = static_cast<double>(d_.rows) / static_cast<double>(n_blocks_)}},
               stream, dy, s, inverse_rms, partial, d_.rows, d_.width);
        launch(add_partial, {.blocks = columns, .threads = kThreads, .work = {.kind = "small"}}, stream,
               static_cast<const float*>(partial), args.dweight, args.dweight_mode == GradientMode::accumulate,
               n_blocks_, d_.width);
      }
      if (args.ds_mode == GradientMode::skip) return;
      const int n_passes = 3 + (args.added ? 1 : 0) + (args.ds_mode == GradientMode::accumulate ? 1 : 0);
      launch(rms_norm_backward<T>, grid_of_rows(n_passes), stream, dy, s, args.weight,
             static_cast<const T*>(args.added), inverse_rms, static_cast<T*>(args.ds),
             args.ds_mode == GradientMode::accumulate, d_.width, d_.weight_offset);
    });
  }

 private:
  static constexpr std::int64_t kMinRows = 16, kMaxBlocks = 64;

  Grid grid_of_rows(int n_passes) const {
    return {.blocks = static_cast<unsigned>(d_.rows),
            .threads = kThreads,
            .work = {.kind = "rows", .bytes = moved_bytes(n_passes, d_.rows, d_.width, size_bytes(d_.dtype))}};
  }

  std::int64_t n_blocks_;  // blocks of rows; each has a partial sum of dweight
};

}  // namespace

std::unique_ptr<RmsNorm> make_rms_norm(const RmsNormDescription& d, const CudaContext& context) {
  require(d.rows > 0 && d.width > 0 && d.rows < (std::int64_t{1} << 31), ErrorCode::op_description,
          "an RMS norm of {} rows of {} elements: both must be positive", d.rows, d.width);
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaRmsNorm>(d, context);
}

}  // namespace lockstep::cuda
