// Bytes moved, each tensor read or written once (E: bytes of the activation x): normalize 2E, 3E with a residual;
// channel_sums E; normalize_backward 3E (x, data gradient, dz), and E each for a residual that is read, a stored z and
// an added gradient; add_into 3E. Partial sums are not included: 8 bytes for each block, channel and sum.
#include "kernels/cuda/normalization.h"

#include "kernels/cuda/normalization_kernels.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;  // of passes without sums
constexpr unsigned kBlocksPerMultiprocessor = 4;
constexpr unsigned kLeastRows = 2;

unsigned block_limit(const CudaContext& context) { return context.blocks(kBlocksPerMultiprocessor); }

template <typename T>
struct NormalizeTask {
  std::int64_t rows = 0;
  float lower_bound = 0;
  const T* x = nullptr;
  const T* residual = nullptr;
  const float* scale_bias = nullptr;
  const float* residual_scale_bias = nullptr;  // may be null
  T* z = nullptr;
};

template <typename T, int kN, bool kResidual>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    normalize_rows(const NormalizeTask<T> task, const RowWalk walk) {
  constexpr int kRows = 2;  // loaded together
  const RowPlace<kN> place(walk);
  if (!place.is_inside) return;
  const NormalizationCoefficients<kN> act(task.scale_bias, task.residual_scale_bias, walk.c, place.channel);
  for (std::int64_t row = place.row; row < task.rows; row += kRows * place.row_step) {
    Vector<T, kN> x[kRows], residual[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const std::int64_t at = row + k * place.row_step, offset = at * walk.c + place.channel;
      if (at >= task.rows) continue;
      x[k] = load_vector<kN>(task.x + offset);
      if constexpr (kResidual) residual[k] = load_vector<kN>(task.residual + offset);
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const std::int64_t at = row + k * place.row_step;
      if (at >= task.rows) continue;
      Floats<kN> z;
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        if constexpr (kResidual)
          z[i] = at_least(task.lower_bound, act(i, x[k][i], residual[k][i]));
        else
          z[i] = at_least(task.lower_bound, act(i, x[k][i]));
      }
      store_floats(task.z + at * walk.c + place.channel, z);
    }
  }
}

/// Partial sums of x - x0 and (x - x0)^2, where x0 is the channel's first element. The relative error of the variance
/// is then that of fp32 rounding, whatever the mean (Chan, Golub and LeVeque, "Algorithms for Computing the Sample
/// Variance", 1983: shifted data).
template <typename T, int kN>
__global__ void __launch_bounds__(kSumThreads, kSumBlocksPerMultiprocessor)
    sum_rows(const T* x, std::int64_t rows, const RowWalk walk, double* partials) {
  constexpr int kRows = 4;  // loaded together
  const RowPlace<kN> place(walk);
  ThreadSums<2, kN> sums;
  if (place.is_inside) {
    const Floats<kN> first = load_floats<kN>(x + place.channel);
    std::int64_t row = place.row;
    while (row < rows) {
      for (int run = 0; run < kRowsOfFp32 && row < rows; run += kRows) {
        Vector<T, kN> value[kRows];
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
          const std::int64_t at = row + k * place.row_step;
          if (at < rows) value[k] = load_vector<kN>(x + at * walk.c + place.channel);
        }
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
          if (row + k * place.row_step >= rows) continue;
#pragma unroll
          for (int i = 0; i < kN; ++i) {
            const float shifted = value[k][i] - first[i];
            sums.run[0][i] += shifted;
            sums.run[1][i] = fmaf(shifted, shifted, sums.run[1][i]);
          }
        }
        row += kRows * place.row_step;
      }
      sums.flush();
    }
  }
  sums.leave_partial_sums(walk, partials);
}

// The second stage has a block for each 32 channels. Each of its kFinishLanes warps adds every kFinishLanes-th part.
constexpr unsigned kFinishChannels = 32, kFinishLanes = 16;

/// Adds up the parts of channel `c`. Lane 0 gets the sums. All threads of the block must call this.
template <int kKinds>
__device__ void add_parts(const double* partials, unsigned parts, std::int64_t n_channels, std::int64_t c,
                          double (&sum)[kKinds]) {
  __shared__ double shared[kKinds][kFinishLanes][kFinishChannels];
  const unsigned lane = threadIdx.x / kFinishChannels, column = threadIdx.x % kFinishChannels;
  for (int kind = 0; kind < kKinds; ++kind) sum[kind] = 0;
  if (c < n_channels) {
#pragma unroll 4
    for (unsigned part = lane; part < parts; part += kFinishLanes)
      for (int kind = 0; kind < kKinds; ++kind)
        sum[kind] += partials[(std::int64_t{part} * kKinds + kind) * n_channels + c];
  }
  for (int kind = 0; kind < kKinds; ++kind) shared[kind][lane][column] = sum[kind];
  __syncthreads();
  if (lane != 0) return;
  for (int kind = 0; kind < kKinds; ++kind)
    for (unsigned other = 1; other < kFinishLanes; ++other) sum[kind] += shared[kind][other][column];
}
__device__ inline std::int64_t finish_channel() {
  return std::int64_t{blockIdx.x} * kFinishChannels + threadIdx.x % kFinishChannels;
}
__device__ inline bool is_finish_writer(std::int64_t c, std::int64_t n_channels) {
  return threadIdx.x < kFinishChannels && c < n_channels;
}
Grid finish_grid(std::int64_t c) {
  return {.blocks = static_cast<unsigned>((c + kFinishChannels - 1) / kFinishChannels),
          .threads = kFinishChannels * kFinishLanes,
          .work = {.kind = "small"}};
}

template <typename T>
__global__ void finish_channel_sums(const double* partials, unsigned parts, const T* x, std::int64_t rows,
                                    std::int64_t n_channels, double* statistics) {
  const std::int64_t c = finish_channel();
  double sum[2];
  add_parts(partials, parts, n_channels, c, sum);
  if (!is_finish_writer(c, n_channels)) return;
  const double first = to_float(x[c]), n = static_cast<double>(rows);
  statistics[c] = sum[0] + n * first;
  statistics[n_channels + c] = sum[1] + first * (2 * sum[0] + n * first);
}

template <int kKinds>
__global__ void finish_backward(const double* partials, unsigned parts, std::int64_t n_channels,
                                const NormalizationBackward args) {
  const std::int64_t c = finish_channel();
  double sum[kKinds];
  add_parts(partials, parts, n_channels, c, sum);
  if (!is_finish_writer(c, n_channels)) return;
  const auto put = [&](const TypedPointer& sums, double sum_x_hat) {
    if (sums.dtype == DType::fp32) {
      sums.as<float>()[c] = static_cast<float>(sum[0]);
      sums.as<float>()[n_channels + c] = static_cast<float>(sum_x_hat);
    } else {
      sums.as<double>()[c] = sum[0];
      sums.as<double>()[n_channels + c] = sum_x_hat;
    }
  };
  put(args.sums, sum[1] * args.mean_inverse_stddev[n_channels + c]);
  if constexpr (kKinds == 3) put(args.residual_sums, sum[2] * args.residual_mean_inverse_stddev[n_channels + c]);
}

/// A data gradient that is stored as a tensor.
template <typename T>
struct TensorGradient {
  static constexpr int kRowsAtOnce = 2;
  static constexpr bool kIsGathered = false;
  const T* data_gradient;

  template <int kN>
  __device__ Vector<T, kN> load(std::int64_t, std::int64_t, std::int64_t offset) const {
    return load_vector<kN>(data_gradient + offset);
  }
};

template <typename T, int kN>
__global__ void __launch_bounds__(kThreads) add_elements(const T* value, T* target, std::size_t n_elements) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x, n_vectors = n_elements / kN;
  const std::size_t first = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (std::size_t i = first; i < n_vectors; i += step) {
    const Vector<T, kN> a = load_vector<kN>(value + i * kN), b = load_vector<kN>(target + i * kN);
    Floats<kN> sum;
#pragma unroll
    for (int k = 0; k < kN; ++k) sum[k] = b[k] + a[k];
    store_floats(target + i * kN, sum);
  }
  const std::size_t rest = n_vectors * kN + first;  // fewer than kN elements are left over
  if (rest < n_elements) target[rest] = from_float<T>(to_float(target[rest]) + to_float(value[rest]));
}

/// The maximum number of partial sums for a shape, whether elements are read in packs or one by one.
unsigned max_parts(const ActivationShape& shape, const CudaContext& context) {
  return dispatch(shape.dtype, [&](auto* type) {
    constexpr int kPack = Pack<std::remove_pointer_t<decltype(type)>>::kSize;
    const unsigned parts = sum_walk(shape, 1, context).grid.blocks;
    return shape.c % kPack == 0 ? std::max(parts, sum_walk(shape, kPack, context).grid.blocks) : parts;
  });
}

}  // namespace

void normalize(const ActivationShape& shape, const InputNormalization& normalization, const void* x,
               const NormalizationForward& args, void* z, const CudaContext& context, Stream& stream) {
  using Residual = InputNormalization::Residual;
  dispatch(shape.dtype, [&]<typename T>(T*) {
    constexpr int kPack = Pack<T>::kSize;
    const bool residual = normalization.residual != Residual::none;
    NormalizeTask<T> task;
    task.rows = shape.rows;
    task.lower_bound = lower_bound(normalization.relu);
    task.x = static_cast<const T*>(x);
    task.residual = residual ? static_cast<const T*>(args.residual) : nullptr;
    task.scale_bias = args.scale_bias;
    if (normalization.residual == Residual::normalized) task.residual_scale_bias = args.residual_scale_bias;
    task.z = static_cast<T*>(z);
    const bool packs = allows_packs<T>(shape.c, x, task.residual, z);
    RowWalk walk(shape.rows, shape.c, packs ? kPack : 1, kThreads, block_limit(context), kLeastRows);
    walk.grid.work = {.kind = packs ? "packs" : "elements",
                      .bytes = moved_bytes(residual ? 3 : 2, shape.rows, shape.c, sizeof(T))};
    auto* kernel = packs ? (residual ? normalize_rows<T, kPack, true> : normalize_rows<T, kPack, false>)
                         : (residual ? normalize_rows<T, 1, true> : normalize_rows<T, 1, false>);
    launch(kernel, walk.grid, stream, task, walk);
  });
}

std::size_t channel_sums_workspace_bytes(const ActivationShape& shape, const CudaContext& context) {
  return partial_sums_bytes(max_parts(shape, context), 2, shape.c);
}

void channel_sums(const ActivationShape& shape, const void* x, double* statistics, void* workspace,
                  const CudaContext& context, Stream& stream) {
  dispatch(shape.dtype, [&]<typename T>(T*) {
    constexpr int kPack = Pack<T>::kSize;
    auto* partials = static_cast<double*>(workspace);
    const bool packs = allows_packs<T>(shape.c, x);
    RowWalk walk = sum_walk(shape, packs ? kPack : 1, context);
    walk.grid.work = {.kind = packs ? "packs" : "elements", .bytes = moved_bytes(1, shape.rows, shape.c, sizeof(T))};
    launch(packs ? sum_rows<T, kPack> : sum_rows<T, 1>, walk.grid, stream, static_cast<const T*>(x), shape.rows, walk,
           partials);
    launch(finish_channel_sums<T>, finish_grid(shape.c), stream, partials, walk.grid.blocks, static_cast<const T*>(x),
           shape.rows, shape.c, statistics);
  });
}

std::size_t normalize_backward_workspace_bytes(const ActivationShape& shape, const CudaContext& context) {
  return partial_sums_bytes(max_parts(shape, context), 3, shape.c);
}

void finish_backward_sums(const ActivationShape& shape, const InputNormalization& normalization, const double* partials,
                          unsigned parts, const NormalizationBackward& args, Stream& stream) {
  const bool three = normalization.residual == InputNormalization::Residual::normalized;
  launch(three ? finish_backward<3> : finish_backward<2>, finish_grid(shape.c), stream, partials, parts, shape.c, args);
}

void normalize_backward(const ActivationShape& shape, const InputNormalization& normalization, const void* x,
                        const NormalizationForward& forward, const void* z, const void* data_gradient,
                        const NormalizationBackward& args, void* workspace, const CudaContext& context,
                        Stream& stream) {
  dispatch(shape.dtype, [&]<typename T>(T*) {
    const NormalizeBackwardTask<T> task = make_backward_task<T>(shape, normalization, x, forward, z, args);
    const bool packs = allows_packs<T>(shape.c, x, task.residual, task.operand, data_gradient, args.added, args.dz);
    run_normalize_backward(shape, normalization, task, TensorGradient<T>{static_cast<const T*>(data_gradient)},
                           moved_bytes(1, shape.rows, shape.c, sizeof(T)), packs, args, workspace, context, stream);
  });
}

void add_into(const AddInto& shape, const void* value, void* target, const CudaContext& context, Stream& stream) {
  dispatch(shape.dtype, [&]<typename T>(T*) {
    constexpr int kPack = Pack<T>::kSize;
    const bool packs = are_aligned(value, target);
    const std::size_t n_vectors = std::max<std::size_t>(shape.n_elements / (packs ? kPack : 1), 1);
    launch(packs ? add_elements<T, kPack> : add_elements<T, 1>,
           {.blocks = blocks_for(n_vectors, kThreads, block_limit(context)),
            .threads = kThreads,
            .work = {.kind = packs ? "packs" : "elements",
                     .bytes = 3 * static_cast<double>(shape.n_elements * sizeof(T))}},
           stream, static_cast<const T*>(value), static_cast<T*>(target), shape.n_elements);
  });
}

}  // namespace lockstep::cuda
