// Bytes moved by backward: dz and x are read and dx is written, each once. That is 3E, where E is the size of the
// activation, or 5E for two norms of one dz, which is the minimum. Every block recomputes the coefficients of its
// channels, from about 40 bytes per channel. Finalize moves only those bytes.
#include <memory>

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/rows.h"
#include "lockstep/error.h"
#include "lockstep/ops/batch_norm.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;
/// Thread blocks per multiprocessor in backward: two norms need more registers for coefficients than one.
constexpr unsigned blocks_per_multiprocessor(int norms) { return norms == 1 ? 3 : 2; }
constexpr unsigned kLeastRows = 2;

/// Stores scale and bias of a channel in 16 bits too, if the caller wants that.
template <typename T>
__device__ void narrow_channel(const float* scale_bias, void* narrow, std::int64_t n_channels, std::int64_t c) {
  if (narrow == nullptr) return;
  for (std::int64_t i = c; i < 2 * n_channels; i += n_channels)
    static_cast<T*>(narrow)[i] = from_float<T>(scale_bias[i]);
}

/// One row of thread blocks for each norm.
template <typename T>
__global__ void finalize_channels(const BatchNorm::FinalizeBoth both, std::int64_t n_channels, double n,
                                  double epsilon) {
  const BatchNorm::Finalize& args = blockIdx.y == 0 ? both.first : both.second;
  const std::int64_t c = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c >= n_channels) return;
  finalize_channel(args, n_channels, c, n, epsilon);
  narrow_channel<T>(args.scale_bias, args.low_precision_scale_bias, n_channels, c);
}

template <typename T>
__global__ void finalize_channels_for_inference(const BatchNorm::FinalizeInference args, std::int64_t n_channels,
                                                double epsilon) {
  const std::int64_t c = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c >= n_channels) return;
  finalize_channel(args, n_channels, c, epsilon);
  narrow_channel<T>(args.scale_bias, args.low_precision_scale_bias, n_channels, c);
}

/// dx = gamma * inverse_stddev * (dz - sum dz / n - x_hat * sum(dz * x_hat) / n)
///    = dz_factor * dz + (x_factor * (x - mean) + constant)
/// Subtracting the mean first keeps the rounding error of x_factor from being multiplied by it. The factors are
/// computed in fp64, once for each channel of the thread block.
/// The norms are independent, except that dz is read only once.
template <typename T, int kN, int kNorms>
__global__ void __launch_bounds__(kThreads, blocks_per_multiprocessor(kNorms))
    batch_norm_backward(const BatchNorm::BackwardBoth both, std::int64_t rows, double n, const RowWalk walk) {
  constexpr int kRows = 2;  // loaded together
  constexpr unsigned kMaxWidth = RowWalk::kMaxColumns * kN;
  __shared__ float dz_factors[kNorms][kMaxWidth], x_factors[kNorms][kMaxWidth], means[kNorms][kMaxWidth],
      constants[kNorms][kMaxWidth];
  const unsigned width = walk.columns * kN;
  for (unsigned item = threadIdx.x; item < kNorms * width; item += blockDim.x) {
    const unsigned norm = item / width, j = item % width;
    const BatchNorm::Backward& args = norm == 0 ? both.first : both.second;
    const std::int64_t c = std::int64_t{blockIdx.y} * width + j;
    if (c >= walk.c) continue;
    const double inverse_stddev = args.mean_inverse_stddev[walk.c + c];
    const double scale = args.gamma[c] * inverse_stddev;
    dz_factors[norm][j] = static_cast<float>(scale);
    const bool has_sums = args.sums.data != nullptr;
    const double sum = has_sums ? args.sums[c] : 0;
    const double sum_x_hat = has_sums ? args.sums[walk.c + c] : 0;
    x_factors[norm][j] = static_cast<float>(-scale * inverse_stddev * sum_x_hat / n);
    means[norm][j] = args.mean_inverse_stddev[c];
    constants[norm][j] = static_cast<float>(-scale * sum / n);
    if (blockIdx.x != 0 || args.parameter_mode == GradientMode::skip) continue;
    put_by_mode(args.dbeta[c], args.local_sums[c], args.parameter_mode);
    put_by_mode(args.dgamma[c], args.local_sums[walk.c + c], args.parameter_mode);
  }
  __syncthreads();
  const RowPlace<kN> place(walk);
  if (!place.is_inside) return;
  float dz_factor[kNorms][kN], x_factor[kNorms][kN], mean[kNorms][kN], constant[kNorms][kN];
#pragma unroll
  for (int norm = 0; norm < kNorms; ++norm)
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const unsigned j = place.column * kN + i;
      dz_factor[norm][i] = dz_factors[norm][j];
      x_factor[norm][i] = x_factors[norm][j];
      mean[norm][i] = means[norm][j];
      constant[norm][i] = constants[norm][j];
    }
  const T* dz = static_cast<const T*>(both.first.dz);
  const T* x[] = {static_cast<const T*>(both.first.x), static_cast<const T*>(both.second.x)};
  T* dx[] = {static_cast<T*>(both.first.dx), static_cast<T*>(both.second.dx)};
  for (std::int64_t row = place.row; row < rows; row += kRows * place.row_step) {
    Vector<T, kN> dz_values[kRows], x_values[kRows][kNorms];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const std::int64_t at = row + k * place.row_step, offset = at * walk.c + place.channel;
      if (at >= rows) continue;
      dz_values[k] = load_vector<kN>(dz + offset);
#pragma unroll
      for (int norm = 0; norm < kNorms; ++norm) x_values[k][norm] = load_vector<kN>(x[norm] + offset);
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const std::int64_t at = row + k * place.row_step;
      if (at >= rows) continue;
#pragma unroll
      for (int norm = 0; norm < kNorms; ++norm) {
        Floats<kN> result;
#pragma unroll
        for (int i = 0; i < kN; ++i)
          result[i] = fmaf(dz_factor[norm][i], dz_values[k][i],
                           fmaf(x_factor[norm][i], x_values[k][norm][i] - mean[norm][i], constant[norm][i]));
        store_floats(dx[norm] + at * walk.c + place.channel, result);
      }
    }
  }
}

class CudaBatchNorm final : public CudaOp<BatchNormDescription> {
 public:
  CudaBatchNorm(const BatchNormDescription& d, const CudaContext& context)
      : PlannedOp(d, context), rows_(d.x[0] * d.x[1] * d.x[2]), channels_(d.x[3]) {}

  std::string describe() const override {
    return "own kernels: scale and bias in fp64; backward one pass over dz and x";
  }

  void run_finalize(const Finalize& args, const OpMemory&, Stream& stream) override {
    finalize_norms({args, {}}, 1, stream);
  }
  void run_finalize_both(const FinalizeBoth& args, const OpMemory&, Stream& stream) override {
    finalize_norms(args, 2, stream);
  }

  void run_finalize_inference(const FinalizeInference& args, const OpMemory&, Stream& stream) override {
    dispatch(d_.dtype, [&](auto* type) {
      launch(finalize_channels_for_inference<std::remove_pointer_t<decltype(type)>>, channel_grid(), stream, args,
             channels_, epsilon());
    });
  }

  void run_backward(const Backward& args, const OpMemory&, Stream& stream) override {
    backward_of<1>({args, {}}, stream);
  }
  void run_backward_both(const BackwardBoth& args, const OpMemory&, Stream& stream) override {
    require(args.first.dz == args.second.dz, ErrorCode::internal, "two norms have different gradients of their sum");
    backward_of<2>(args, stream);
  }

 private:
  void finalize_norms(const FinalizeBoth& args, unsigned n_norms, Stream& stream) const {
    Grid grid = channel_grid();
    grid.blocks_y = n_norms;
    dispatch(d_.dtype, [&](auto* type) {
      launch(finalize_channels<std::remove_pointer_t<decltype(type)>>, grid, stream, args, channels_, d_.n_rows,
             epsilon());
    });
  }

  template <int kNorms>
  void backward_of(const BackwardBoth& args, Stream& stream) const {
    dispatch(d_.dtype, [&]<typename T>(T*) {
      constexpr int kPack = Pack<T>::kSize;
      const Backward &a = args.first, &b = args.second;  // null pointers count as aligned
      const bool packs = allows_packs<T>(channels_, a.dz, a.x, a.dx, b.x, b.dx);
      RowWalk walk(rows_, channels_, packs ? kPack : 1, kThreads, context_.blocks(blocks_per_multiprocessor(kNorms)),
                   kLeastRows);
      walk.grid.work = {.kind = packs ? "packs" : "elements",
                        .bytes = moved_bytes(1 + 2 * kNorms, rows_, channels_, sizeof(T))};
      launch(packs ? batch_norm_backward<T, kPack, kNorms> : batch_norm_backward<T, 1, kNorms>, walk.grid, stream, args,
             rows_, d_.n_rows, walk);
    });
  }

  Grid channel_grid() const {
    constexpr unsigned kChannelThreads = 64;
    return {.blocks = static_cast<unsigned>((channels_ + kChannelThreads - 1) / kChannelThreads),
            .threads = kChannelThreads,
            .work = {.kind = "small"}};
  }
  double epsilon() const { return d_.epsilon; }

  std::int64_t rows_;
  std::int64_t channels_;
};

}  // namespace

std::unique_ptr<BatchNorm> make_batch_norm(const BatchNormDescription& d, const CudaContext& context) {
  dispatch(d.dtype, [](auto*) {});  // rejects other types
  require(d.x.rank() == 4 && d.x.n_elements() > 0, ErrorCode::op_description,
          "batch norm needs an input (N, H, W, C) that is not empty, not {}", d.x.text());
  require(d.layout == Layout::nhwc, ErrorCode::not_supported, "batch norm on the device needs nhwc, not {}",
          name(d.layout));
  return std::make_unique<CudaBatchNorm>(d, context);
}

}  // namespace lockstep::cuda
