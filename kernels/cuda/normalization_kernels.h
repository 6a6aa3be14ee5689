// What the kernels of a pending normalisation share: its formula, and its backward pass for any source of the data
// gradient, so that pooling (pool2d.cu) needs only one pass.
#pragma once

#include "kernels/cuda/base/rows.h"
#include "kernels/cuda/normalization.h"
#include "lockstep/ops/normalization.h"

namespace lockstep::cuda {

/// The number of rows that a thread adds in fp32 before it adds their sum in fp64. Many devices have few fp64 units (1
/// for every 32 or 64 of fp32), but even there, 1 in 8 additions in fp64 costs less than the memory accesses. A sum's
/// error is that of at most 8 + 2 roundings of fp32 for each term, whatever the number of rows.
inline constexpr int kRowsOfFp32 = 8;
/// For the kernels that sum.
inline constexpr unsigned kSumThreads = 128;
inline constexpr unsigned kSumBlocksPerMultiprocessor = 3;  // 168 registers per thread

/// Partial sums of all blocks, in fp64: (parts, kinds, C).
inline std::size_t partial_sums_bytes(std::int64_t parts, int kinds, std::int64_t c) {
  return static_cast<std::size_t>(parts * kinds * c) * sizeof(double);
}

/// Sums of a thread's channels: recent rows in fp32, all rows in fp64. The latter are in shared memory, since the
/// registers are needed for coefficients and loads.
template <int kKinds, int kN>
class ThreadSums {
 public:
  float run[kKinds][kN] = {};

  __device__ ThreadSums() : totals_(shared_totals()) {
#pragma unroll
    for (int k = 0; k < kKinds * kN; ++k) totals_[k * kSumThreads + threadIdx.x] = 0;
  }

  __device__ void flush() {
#pragma unroll
    for (int kind = 0; kind < kKinds; ++kind)
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        totals_[(kind * kN + i) * kSumThreads + threadIdx.x] += run[kind][i];
        run[kind][i] = 0;
      }
  }

  /// Adds over the block's lanes, in their order, and calls f(kind, channel, total) for each of the block's channels,
  /// in some thread; after a barrier.
  template <typename F>
  __device__ void for_each_total(const RowWalk& walk, F&& f) const {
    const unsigned width = walk.columns * kN;
    for (unsigned j = threadIdx.x; j < width * kKinds; j += blockDim.x) {
      const unsigned kind = j / width, i = j % width % kN, column = j % width / kN;
      const std::int64_t channel = std::int64_t{blockIdx.y} * width + j % width;
      if (channel >= walk.c) continue;
      const double* lanes = totals_ + (kind * kN + i) * kSumThreads + column;
      double total = 0;
      for (unsigned lane = 0; lane < walk.lanes; ++lane) total += lanes[lane * walk.columns];
      f(static_cast<int>(kind), channel, total);
    }
  }

  /// Writes them to part blockIdx.x. All threads call it.
  __device__ void leave_partial_sums(const RowWalk& walk, double* partials) const {
    __syncthreads();
    for_each_total(walk, [&](int kind, std::int64_t channel, double total) {
      partials[(std::int64_t{blockIdx.x} * kKinds + kind) * walk.c + channel] = total;
    });
  }

 private:
  static __device__ double* shared_totals() {
    __shared__ double totals[kKinds * kN * kSumThreads];
    return totals;
  }
  double* totals_;
};

/// z = act(scale * x + bias + residual_scale * r) of a thread's channels; a plain residual has scale 1, and the biases
/// of a normalised one are added first. Null: x as it is. The fused multiply-adds are explicit, so that forward and
/// backward see the same sign.
template <int kN>
struct NormalizationCoefficients {
  float scale[kN], bias[kN], residual_scale[kN];

  __device__ NormalizationCoefficients(const float* scale_bias, const float* residual_scale_bias, std::int64_t c,
                                       std::int64_t channel) {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      scale[i] = scale_bias == nullptr ? 1.0f : scale_bias[channel + i];
      bias[i] = scale_bias == nullptr ? 0.0f : scale_bias[c + channel + i];
      residual_scale[i] = 1.0f;
      if (residual_scale_bias == nullptr) continue;
      residual_scale[i] = residual_scale_bias[channel + i];
      bias[i] += residual_scale_bias[c + channel + i];
    }
  }
  __device__ float operator()(int i, float x) const { return fmaf(scale[i], x, bias[i]); }
  __device__ float operator()(int i, float x, float residual) const {
    return fmaf(residual_scale[i], residual, fmaf(scale[i], x, bias[i]));
  }
};

/// The lower bound of an activation's values; NaN stays NaN.
inline float lower_bound(bool relu) { return relu ? 0.0f : -INFINITY; }
__device__ inline float at_least(float lower_bound, float value) { return value < lower_bound ? lower_bound : value; }

/// Where the ReLU's mask comes from.
enum class Mask { none, stored, recomputed };

template <typename T>
struct NormalizeBackwardTask {
  std::int64_t rows = 0;
  Mask mask = Mask::none;
  const T* x = nullptr;
  const T* residual = nullptr;  // with residual sums
  const T* operand = nullptr;   // of the mask: z if stored, else a plain residual; or null
  const T* added = nullptr;     // or null
  T* dz = nullptr;
  const float* scale_bias = nullptr;
  const float* residual_scale_bias = nullptr;           // or null
  const float* mean_inverse_stddev = nullptr;           // (2, C)
  const float* residual_mean_inverse_stddev = nullptr;  // (2, C), with residual sums
};

template <typename T>
NormalizeBackwardTask<T> make_backward_task(const ActivationShape& shape, const InputNormalization& normalization,
                                            const void* x, const NormalizationForward& forward, const void* z,
                                            const NormalizationBackward& args) {
  using Residual = InputNormalization::Residual;
  const bool residual_sums = normalization.residual == Residual::normalized;
  NormalizeBackwardTask<T> task;
  task.rows = shape.rows;
  task.mask = !normalization.relu ? Mask::none : z != nullptr ? Mask::stored : Mask::recomputed;
  task.x = static_cast<const T*>(x);
  if (residual_sums) task.residual = static_cast<const T*>(forward.residual);
  if (task.mask == Mask::stored) task.operand = static_cast<const T*>(z);
  if (task.mask == Mask::recomputed && normalization.residual == Residual::plain)
    task.operand = static_cast<const T*>(forward.residual);
  task.added = static_cast<const T*>(args.added);
  task.dz = static_cast<T*>(args.dz);
  task.scale_bias = forward.scale_bias;
  task.residual_scale_bias = residual_sums ? forward.residual_scale_bias : nullptr;
  task.mean_inverse_stddev = args.mean_inverse_stddev;
  task.residual_mean_inverse_stddev = args.residual_mean_inverse_stddev;
  return task;
}

/// The mask of a vector of dz.
template <int kN, int kKinds, typename V>
__device__ inline void mask_gradient(Mask mask, bool has_operand, const NormalizationCoefficients<kN>& act, const V& x,
                                     const V& residual, const V& operand, Floats<kN>& dz) {
  const auto keep_where_positive = [&dz](auto&& z) {
#pragma unroll
    for (int i = 0; i < kN; ++i) dz[i] = z(i) <= 0.0f ? 0.0f : dz[i];
  };
  if (mask == Mask::stored) keep_where_positive([&](int i) { return operand[i]; });
  if (mask != Mask::recomputed) return;
  if constexpr (kKinds == 3)
    keep_where_positive([&](int i) { return act(i, x[i], residual[i]); });
  else if (has_operand)
    keep_where_positive([&](int i) { return act(i, x[i], operand[i]); });
  else
    keep_where_positive([&](int i) { return act(i, x[i]); });
}

/// dz, and partial sums of dz, dz * (x - mean) and, of a normalised residual, dz * (r - mean): two kinds or three.
/// `Gradient` provides the data gradient: load<kN>(row, channel, offset) returns a type with operator[]. Gathering the
/// data gradient takes registers.
template <typename T, int kN, int kKinds, typename Gradient>
__global__ void __launch_bounds__(kSumThreads,
                                  kKinds == 3 && kN == 8 && Gradient::kIsGathered ? 2 : kSumBlocksPerMultiprocessor)
    normalize_backward_rows(const NormalizeBackwardTask<T> task, const Gradient gradient, const RowWalk walk,
                            double* partials) {
  // Rows that are loaded together, limited by registers.
  constexpr int kRows = kKinds == 3 && kN == 8 ? 1 : Gradient::kRowsAtOnce;
  static_assert(kRowsOfFp32 % kRows == 0);
  const RowPlace<kN> place(walk);
  ThreadSums<kKinds, kN> sums;
  if (place.is_inside) {
    const std::int64_t channel = place.channel;
    // With two kinds there is no residual scale. A null pointer that the compiler can see frees registers.
    const float* const residual_scale_bias = kKinds == 3 ? task.residual_scale_bias : nullptr;
    const NormalizationCoefficients<kN> act(task.scale_bias, residual_scale_bias, walk.c, channel);
    float mean[kN], residual_mean[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      mean[i] = task.mean_inverse_stddev[channel + i];
      residual_mean[i] = kKinds == 3 ? task.residual_mean_inverse_stddev[channel + i] : 0.0f;
    }
    std::int64_t row = place.row;
    while (row < task.rows) {
      for (int run = 0; run < kRowsOfFp32 && row < task.rows; run += kRows) {
        using Data = decltype(gradient.template load<kN>(row, channel, row));
        Vector<T, kN> x[kRows], residual[kRows], operand[kRows], added[kRows];
        Data data[kRows];
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
          const std::int64_t at = row + k * place.row_step, offset = at * walk.c + channel;
          if (at >= task.rows) continue;
          x[k] = load_vector<kN>(task.x + offset);
          if constexpr (kKinds == 3) residual[k] = load_vector<kN>(task.residual + offset);
          // Gathering waits for its own loads. It comes before loads that it does not need, so that these take no
          // registers from it.
          data[k] = gradient.template load<kN>(at, channel, offset);
          operand[k] = load_if_any<kN>(task.operand, offset);
          added[k] = load_if_any<kN>(task.added, offset);
        }
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
          const std::int64_t at = row + k * place.row_step;
          if (at >= task.rows) continue;
          Floats<kN> dz;
#pragma unroll
          for (int i = 0; i < kN; ++i) dz[i] = data[k][i];
          if (task.added != nullptr) {
#pragma unroll
            for (int i = 0; i < kN; ++i) dz[i] += added[k][i];
          }
          mask_gradient<kN, kKinds>(task.mask, task.operand != nullptr, act, x[k], residual[k], operand[k], dz);
#pragma unroll
          for (int i = 0; i < kN; ++i) {
            sums.run[0][i] += dz[i];
            sums.run[1][i] = fmaf(dz[i], x[k][i] - mean[i], sums.run[1][i]);
            if constexpr (kKinds == 3) sums.run[2][i] = fmaf(dz[i], residual[k][i] - residual_mean[i], sums.run[2][i]);
          }
          store_floats(task.dz + at * walk.c + channel, dz);
        }
        row += kRows * place.row_step;
      }
      sums.flush();
    }
  }
  sums.leave_partial_sums(walk, partials);
}

/// The second stage of all backward passes: partial sums to args.sums and args.residual_sums.
void finish_backward_sums(const ActivationShape& shape, const InputNormalization& normalization, const double* partials,
                          unsigned parts, const NormalizationBackward& args, Stream& stream);

/// The walk of the passes that sum.
inline RowWalk sum_walk(const ActivationShape& shape, int vector_size, const CudaContext& context) {
  constexpr unsigned kLeastRows = 4;
  return RowWalk(shape.rows, shape.c, vector_size, kSumThreads, context.blocks(kSumBlocksPerMultiprocessor),
                 kLeastRows);
}

/// Both stages, in packs or one by one. `gradient_bytes`: those that `gradient` reads.
template <typename T, typename Gradient>
void run_normalize_backward(const ActivationShape& shape, const InputNormalization& normalization,
                            const NormalizeBackwardTask<T>& task, const Gradient& gradient, double gradient_bytes,
                            bool packs, const NormalizationBackward& args, void* workspace, const CudaContext& context,
                            Stream& stream) {
  constexpr int kPack = Pack<T>::kSize;
  const bool three = normalization.residual == InputNormalization::Residual::normalized;
  auto* partials = static_cast<double*>(workspace);
  RowWalk walk = sum_walk(shape, packs ? kPack : 1, context);
  const int n_tensors = 2 + static_cast<int>(task.residual != nullptr) + static_cast<int>(task.operand != nullptr) +
                        static_cast<int>(task.added != nullptr);  // x and dz always
  walk.grid.work = {.kind = packs ? "packs" : "elements",
                    .bytes = moved_bytes(n_tensors, shape.rows, shape.c, sizeof(T)) + gradient_bytes};
  auto* kernel =
      packs ? (three ? normalize_backward_rows<T, kPack, 3, Gradient> : normalize_backward_rows<T, kPack, 2, Gradient>)
            : (three ? normalize_backward_rows<T, 1, 3, Gradient> : normalize_backward_rows<T, 1, 2, Gradient>);
  launch(kernel, walk.grid, stream, task, gradient, walk, partials);
  finish_backward_sums(shape, normalization, partials, walk.grid.blocks, args, stream);
}

}  // namespace lockstep::cuda
