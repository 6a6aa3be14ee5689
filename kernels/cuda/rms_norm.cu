// RMS norm (lockstep/ops/rms_norm.h). One, two, four or eight warps compute a row, as few as can keep it in registers:
// kVectors vectors of 16 bytes per thread. What is beyond eight warps is read twice, the second time from the caches.
// `saved` holds 1 / rms of each row. Backward computes ds and dweight in one pass: a thread adds up its columns over a
// block of rows, and a second kernel adds the sums of these blocks. Blocks of rows depend on the number of rows alone,
// so dweight has the same bits on every device.
// Bytes moved, where E is the size of x: forward 2E, or 4E with a residual; backward 3E, or 4E with an added gradient,
// and E more if ds is accumulated. No kernel can move less. Partial sums are at most 8 bytes for each column and
// kMinRows rows, and the weights, fp32, stay in the caches.
#include <algorithm>
#include <bit>
#include <memory>

#include "kernels/cuda/base/block_sum.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/conversions.h"
#include "kernels/cuda/base/rows.h"
#include "kernels/cuda/matmul_few_rows.h"
#include "lockstep/ops/rms_norm.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256, kWarps = kThreads / 32;
constexpr int kVectors = 4;

/// What the kernels know about the shape: `threads` of a block compute a row together.
struct RowShape {
  std::int64_t rows = 0;
  int width = 0;
  unsigned threads = kThreads;

  RowShape(const RmsNormDescription& d, int vector_size) : rows(d.rows), width(static_cast<int>(d.width)) {
    const std::int64_t in_warp = 32 * kVectors * vector_size;
    threads = 32 * std::min(std::bit_ceil(static_cast<unsigned>((d.width + in_warp - 1) / in_warp)), kWarps);
  }
  __host__ __device__ unsigned rows_of_block() const { return kThreads / threads; }
  /// The columns of vector `j` of this thread begin here.
  template <int kN>
  __device__ int column(int j) const {
    return (j * static_cast<int>(threads) + static_cast<int>(threadIdx.x % threads)) * kN;
  }
};

/// The part of a row, which begins at `begin`, that this thread has in registers. Zeros beyond `width`.
template <int kN, typename T>
__device__ inline void load_row(const T* begin, const RowShape& shape, int width, Vector<T, kN> (&row)[kVectors]) {
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int c = shape.column<kN>(j);
    row[j] = {};
    if (c < width) row[j] = load_vector<kN>(begin + c);
  }
}

/// The sum over the threads of a row, each of which gets the same bits. All threads of the block must call it.
__device__ inline float row_sum(float value, unsigned threads) {
  __shared__ float sums[kWarps];
  value = warp_sum(value);
  if (threads == 32) return value;
  __syncthreads();  // `sums` may still be read by the previous call
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  const unsigned first = threadIdx.x / threads * threads / 32;
  float sum = 0;
  for (unsigned warp = 0; warp < threads / 32; ++warp) sum += sums[first + warp];
  return sum;
}

template <typename T, int kN>
__device__ inline Vector<T, kN> add(const Vector<T, kN>& a, const Vector<T, kN>& b) {
  Floats<kN> sum;
#pragma unroll
  for (int i = 0; i < kN; ++i) sum[i] = a[i] + b[i];
  return round_floats<T, kN>(sum);
}
template <typename T, int kN>
__device__ inline float sum_of_squares(const Vector<T, kN>& vector) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kN; ++i) sum += vector[i] * vector[i];
  return sum;
}
template <typename T, int kN>
__device__ inline void store_normalized(T* y, const Vector<T, kN>& s, float inverse, const float* weight,
                                        float offset) {
  Floats<kN> out = load_floats<kN>(weight);
#pragma unroll
  for (int i = 0; i < kN; ++i) out[i] = s[i] * inverse * (offset + out[i]);
  store_floats(y, out);
}

/// If `residual` is null, s is x and is not written. If `inverse_rms` is null, it is not kept.
template <typename T, int kN>
__global__ void __launch_bounds__(kThreads)
    rms_norm_forward(const T* x, const T* residual, const float* __restrict__ weight, T* s, T* y, float* inverse_rms,
                     const RowShape shape, float epsilon, float offset) {
  const std::int64_t row = std::int64_t{blockIdx.x} * shape.rows_of_block() + threadIdx.x / shape.threads;
  const std::int64_t begin = row * shape.width;
  const int width = row < shape.rows ? shape.width : 0;
  Vector<T, kN> kept[kVectors];
  load_row(x + begin, shape, width, kept);
  if (residual != nullptr) {
    Vector<T, kN> added[kVectors];
    load_row(residual + begin, shape, width, added);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int c = shape.column<kN>(j);
      kept[j] = add(kept[j], added[j]);
      if (c < width) store_vector(s + begin + c, kept[j]);
    }
  }
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) squares += sum_of_squares(kept[j]);
  for (int j = kVectors, c = shape.column<kN>(j); c < width; c = shape.column<kN>(++j)) {
    Vector<T, kN> value = load_vector<kN>(x + begin + c);
    if (residual != nullptr) {
      value = add(value, load_vector<kN>(residual + begin + c));
      store_vector(s + begin + c, value);
    }
    squares += sum_of_squares(value);
  }
  const float mean = row_sum(squares, shape.threads) / static_cast<float>(shape.width);
  const float inverse = 1.0f / sqrtf(mean + epsilon);
  if (inverse_rms != nullptr && width > 0 && threadIdx.x % shape.threads == 0) inverse_rms[row] = inverse;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int c = shape.column<kN>(j);
    if (c < width) store_normalized(y + begin + c, kept[j], inverse, weight + c, offset);
  }
  const T* const stored = residual != nullptr ? s : x;  // of which a thread reads only what it has written
  for (int j = kVectors, c = shape.column<kN>(j); c < width; c = shape.column<kN>(++j))
    store_normalized(y + begin + c, load_vector<kN>(stored + begin + c), inverse, weight + c, offset);
}

/// What backward computes of one vector of a row.
template <typename T, int kN>
struct RmsNormGradient {
  float offset;
  float inverse;  // of the row
  bool accumulate;

  /// This thread's part of the sum over the row of w * dy * s_hat. Adds dy * s_hat to `dweight`.
  __device__ float products(const Vector<T, kN>& dy, const Vector<T, kN>& s, const Floats<kN>& weight,
                            Floats<kN>& dweight) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const float product = dy[i] * (s[i] * inverse);
      dweight[i] += product;
      sum += (offset + weight[i]) * product;
    }
    return sum;
  }
  __device__ void store(T* ds, const Vector<T, kN>& dy, const Vector<T, kN>& s, const Floats<kN>& weight,
                        const Vector<T, kN>& added, float mean) const {
    Vector<T, kN> before{};
    if (accumulate) before = load_vector<kN>(static_cast<const T*>(ds));
    Floats<kN> out;
#pragma unroll
    for (int i = 0; i < kN; ++i)
      out[i] = inverse * ((offset + weight[i]) * dy[i] - s[i] * inverse * mean) + added[i] + before[i];
    store_floats(ds, out);
  }
};

/// Block blockIdx.x has a block of rows. `partial` (gridDim.x, width) gets its part of dweight, and holds the sums of
/// columns beyond the registers; null: not computed. If `added` or `ds` is null, nothing is added or ds is not
/// computed.
template <typename T, int kN>
__global__ void __launch_bounds__(kThreads, 2)
    rms_norm_backward(const T* dy, const T* s, const float* __restrict__ weight, const T* added,
                      const float* inverse_rms, T* ds, bool accumulate, float* partial, const RowShape shape,
                      float offset) {
  const std::int64_t first = shape.rows * blockIdx.x / gridDim.x, end = shape.rows * (blockIdx.x + 1) / gridDim.x;
  const unsigned row_in_block = threadIdx.x / shape.threads;
  if (partial != nullptr) partial += std::int64_t{blockIdx.x} * shape.width;
  Floats<kN> dweight[kVectors] = {};
  for (std::int64_t base = first; base < end; base += shape.rows_of_block()) {
    const std::int64_t row = base + row_in_block, begin = row * shape.width;
    const int width = row < end ? shape.width : 0;
    const RmsNormGradient<T, kN> gradient{offset, width > 0 ? inverse_rms[row] : 0.0f, accumulate};
    Vector<T, kN> of_dy[kVectors], of_s[kVectors], of_added[kVectors] = {};
    load_row(dy + begin, shape, width, of_dy);
    load_row(s + begin, shape, width, of_s);
    if (added != nullptr) load_row(added + begin, shape, width, of_added);
    float products = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int c = shape.column<kN>(j);
      if (c < width) products += gradient.products(of_dy[j], of_s[j], load_floats<kN>(weight + c), dweight[j]);
    }
    for (int j = kVectors, c = shape.column<kN>(j); c < width; c = shape.column<kN>(++j)) {
      Floats<kN> sum{};
      products += gradient.products(load_vector<kN>(dy + begin + c), load_vector<kN>(s + begin + c),
                                    load_floats<kN>(weight + c), sum);
      for (int i = 0; partial != nullptr && i < kN; ++i)
        partial[c + i] = base == first ? sum[i] : partial[c + i] + sum[i];
    }
    if (ds == nullptr) continue;
    const float mean = row_sum(products, shape.threads) / static_cast<float>(shape.width);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int c = shape.column<kN>(j);
      if (c < width) gradient.store(ds + begin + c, of_dy[j], of_s[j], load_floats<kN>(weight + c), of_added[j], mean);
    }
    for (int j = kVectors, c = shape.column<kN>(j); c < width; c = shape.column<kN>(++j))
      gradient.store(ds + begin + c, load_vector<kN>(dy + begin + c), load_vector<kN>(s + begin + c),
                     load_floats<kN>(weight + c), load_if_any<kN>(added, begin + c), mean);
  }
  if (partial == nullptr) return;
#pragma unroll
  for (int j = 0; j < kVectors; ++j)
    add_lanes<kThreads>(dweight[j], shape.threads, shape.rows_of_block(), [&](unsigned i, float total) {
      const auto c = static_cast<int>(j * shape.threads * kN + i);
      if (c < shape.width) partial[c] = total;
    });
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
    return fmt::format("own kernels, one pass each{}", d_.residual ? "; sum of the residual stream fused" : "");
  }

  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override {
    if (FewRows::normalize(d_, args)) return;
    dispatch(d_.dtype, [&]<typename T>(T*) {
      const bool by_packs = allows_packs<T>(d_.width, args.x, args.residual, args.weight, args.s, args.y);
      const RowShape shape(d_, by_packs ? Pack<T>::kSize : 1);
      const std::int64_t n = shape.rows_of_block();
      launch(by_packs ? rms_norm_forward<T, Pack<T>::kSize> : rms_norm_forward<T, 1>,
             grid((d_.rows + n - 1) / n, by_packs, d_.residual ? 4 : 2), stream, static_cast<const T*>(args.x),
             d_.residual ? static_cast<const T*>(args.residual) : nullptr, args.weight, static_cast<T*>(args.s),
             static_cast<T*>(args.y), d_.inference ? nullptr : static_cast<float*>(memory.saved), shape, d_.epsilon,
             d_.weight_offset);
    });
  }

  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override {
    require(!d_.inference, ErrorCode::internal, "an RMS norm was planned for inference, and backward was called");
    const bool wants_ds = args.ds_mode != GradientMode::skip, wants_dweight = args.dweight_mode != GradientMode::skip;
    if (!wants_ds && !wants_dweight) return;
    const int n_passes =
        2 + (wants_ds ? 1 + (args.added ? 1 : 0) + (args.ds_mode == GradientMode::accumulate ? 1 : 0) : 0);
    auto* const partial = wants_dweight ? static_cast<float*>(memory.workspace) : nullptr;
    dispatch(d_.dtype, [&]<typename T>(T*) {
      const bool by_packs = allows_packs<T>(d_.width, args.dy, args.s, args.weight, args.added, args.ds);
      launch(by_packs ? rms_norm_backward<T, Pack<T>::kSize> : rms_norm_backward<T, 1>,
             grid(n_blocks_, by_packs, n_passes), stream, static_cast<const T*>(args.dy), static_cast<const T*>(args.s),
             args.weight, static_cast<const T*>(args.added), static_cast<const float*>(memory.saved),
             wants_ds ? static_cast<T*>(args.ds) : nullptr, args.ds_mode == GradientMode::accumulate, partial,
             RowShape(d_, by_packs ? Pack<T>::kSize : 1), d_.weight_offset);
    });
    if (wants_dweight)
      add_partial_sums(partial, n_blocks_, d_.width, args.dweight, args.dweight_mode == GradientMode::accumulate,
                       stream);
  }

 private:
  static constexpr std::int64_t kMinRows = 8, kMaxBlocks = 256;  // two blocks for each multiprocessor of an H200

  Grid grid(std::int64_t blocks, bool by_packs, int n_passes) const {
    return {.blocks = static_cast<unsigned>(blocks),
            .threads = kThreads,
            .work = {.kind = by_packs ? "packs" : "elements",
                     .bytes = moved_bytes(n_passes, d_.rows, d_.width, size_bytes(d_.dtype))}};
  }

  std::int64_t n_blocks_;  // blocks of rows; each has a partial sum of dweight
};

}  // namespace

std::unique_ptr<RmsNorm> make_rms_norm(const RmsNormDescription& d, const CudaContext& context) {
  require(d.rows > 0 && d.width > 0 && d.rows < (std::int64_t{1} << 31) && d.width < (std::int64_t{1} << 30),
          ErrorCode::op_description, "an RMS norm of {} rows of {} elements: both must be positive and below 2^30",
          d.rows, d.width);
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaRmsNorm>(d, context);
}

}  // namespace lockstep::cuda
