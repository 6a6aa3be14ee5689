// Forward applies a pending normalisation while reading, unless it is stored; backward gathers the data gradient and
// goes back through the normalisation in the same pass. Max: in a tie, the first in window order (row by row) gets the
// gradient, and NaN wins, both as in PyTorch. `saved` holds the position of the maximum in its window, one byte per
// element of y.
// Bytes moved, each tensor read or written once (E, F: bytes of x and y; windows that overlap are read again from the
// caches): forward E + F, E more with a residual, 2E more where z is stored; max F / element size more for `saved`.
// Backward with a normalisation 2E + F (x, dz, dy) and `saved`, and E each for a residual that is read, a stored z and
// an added gradient; without one E + F and `saved`, E more to accumulate. F more for a second gradient of y.
#include <memory>

#include "kernels/cuda/base/bytes.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/fast_divide.h"
#include "kernels/cuda/normalization_kernels.h"
#include "lockstep/error.h"
#include "lockstep/ops/pool2d.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 128;
constexpr unsigned kBlocksPerMultiprocessor = 4;  // 128 registers per thread

struct Span {
  int begin, end;
};

/// One axis: which pixels are covered by which windows.
struct PoolAxis {
  int size = 1, out_size = 1, kernel_size = 1, stride = 1, padding = 0;
  FastDivide by_size, by_out_size, by_stride;

  PoolAxis(std::int64_t size, std::int64_t out_size, std::int64_t kernel_size, int stride, int padding)
      : size(static_cast<int>(size)),
        out_size(static_cast<int>(out_size)),
        kernel_size(static_cast<int>(kernel_size)),
        stride(stride),
        padding(padding),
        by_size(static_cast<std::uint32_t>(size)),
        by_out_size(static_cast<std::uint32_t>(out_size)),
        by_stride(static_cast<std::uint32_t>(stride)) {}

  /// The window's first pixel, which may be padding.
  __device__ int begin(int p) const { return p * stride - padding; }
  __device__ Span pixels_under(int p) const { return {std::max(begin(p), 0), std::min(begin(p) + kernel_size, size)}; }
  __device__ Span windows_over(int pixel) const {
    const int too_early = pixel + padding - kernel_size;  // a window that begins here ends just before the pixel
    const int last = static_cast<int>(by_stride.quotient(static_cast<std::uint32_t>(pixel + padding)));
    return {too_early < 0 ? 0 : static_cast<int>(by_stride.quotient(static_cast<std::uint32_t>(too_early))) + 1,
            std::min(last + 1, out_size)};
  }
};

struct PoolGeometry {
  PoolAxis rows, columns;

  struct Pixel {
    int n, h, w;
  };
  /// The coordinates of pixel number `i` of x, or of y.
  __device__ Pixel pixel(std::int64_t i) const { return find(i, rows.by_size, columns.by_size); }
  __device__ Pixel out_pixel(std::int64_t i) const { return find(i, rows.by_out_size, columns.by_out_size); }

  /// The number of pixel (n, h, w) of x, and of pixel (n, p, q) of y.
  __device__ std::int64_t index(int n, int h, int w) const {
    return (std::int64_t{n} * rows.size + h) * columns.size + w;
  }
  __device__ std::int64_t out_index(int n, int p, int q) const {
    return (std::int64_t{n} * rows.out_size + p) * columns.out_size + q;
  }

 private:
  static __device__ Pixel find(std::int64_t i, const FastDivide& by_rows, const FastDivide& by_columns) {
    const auto number = static_cast<std::uint32_t>(i);
    const std::uint32_t row = by_columns.quotient(number), n = by_rows.quotient(row);
    return {static_cast<int>(n), static_cast<int>(by_rows.remainder(row, n)),
            static_cast<int>(by_columns.remainder(number, row))};
  }
};

/// Stores kN elements of y, which has type T or fp32.
template <typename T, int kN>
__device__ inline void store_output(void* y, bool is_fp32, std::int64_t offset, const Floats<kN>& values) {
  if (is_fp32)
    store_floats(static_cast<float*>(y) + offset, values);
  else
    store_floats(static_cast<T*>(y) + offset, values);
}

template <typename T>
struct PoolTask {
  std::int64_t rows = 0;  // pixels of y
  float lower_bound = 0;  // of the normalised input
  bool y_is_fp32 = false;
  const T* x = nullptr;
  const T* residual = nullptr;                 // may be null
  const float* scale_bias = nullptr;           // null: x itself
  const float* residual_scale_bias = nullptr;  // may be null
  void* y = nullptr;
  std::uint8_t* saved = nullptr;  // null: no backward follows
};

/// The input at a thread's channels of one pixel. It is loaded first, and normalised later.
template <typename T, int kN>
struct PoolInput {
  Vector<T, kN> x, residual;

  __device__ void load(const PoolTask<T>& task, std::int64_t offset) {
    x = load_vector<kN>(task.x + offset);
    residual = load_if_any<kN>(task.residual, offset);
  }
  __device__ Floats<kN> values(const PoolTask<T>& task, const NormalizationCoefficients<kN>& act) const {
    Floats<kN> z;
    if (task.residual != nullptr) {
#pragma unroll
      for (int i = 0; i < kN; ++i) z[i] = at_least(task.lower_bound, act(i, x[i], residual[i]));
    } else {
#pragma unroll
      for (int i = 0; i < kN; ++i) z[i] = at_least(task.lower_bound, act(i, x[i]));
    }
    return z;
  }
};

template <typename T, int kN, bool kMax>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    pool_forward(const PoolTask<T> task, const PoolGeometry geometry, const RowWalk walk) {
  constexpr int kTaps = 3;  // loaded together: one row of the usual window
  const RowPlace<kN> place(walk);
  if (!place.is_inside) return;
  const NormalizationCoefficients<kN> act(task.scale_bias, task.residual_scale_bias, walk.c, place.channel);
  for (std::int64_t row = place.row; row < task.rows; row += place.row_step) {
    const auto [n, p, q] = geometry.out_pixel(row);
    const Span rows = geometry.rows.pixels_under(p), columns = geometry.columns.pixels_under(q);
    const int window_begin = geometry.rows.begin(p) * geometry.columns.kernel_size + geometry.columns.begin(q);
    Floats<kN> result;
    int position[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      result[i] = kMax ? -INFINITY : 0.0f;
      position[i] = rows.begin * geometry.columns.kernel_size + columns.begin - window_begin;
    }
    for (int h = rows.begin; h < rows.end; ++h) {
      const std::int64_t line = geometry.index(n, h, 0) * walk.c + place.channel;
      for (int first = columns.begin; first < columns.end; first += kTaps) {
        PoolInput<T, kN> input[kTaps];
#pragma unroll
        for (int k = 0; k < kTaps; ++k)
          if (first + k < columns.end) input[k].load(task, line + (first + k) * walk.c);
#pragma unroll
        for (int k = 0; k < kTaps; ++k) {
          if (first + k >= columns.end) continue;
          const Floats<kN> z = input[k].values(task, act);
          const int here = h * geometry.columns.kernel_size + first + k - window_begin;
#pragma unroll
          for (int i = 0; i < kN; ++i) {
            if constexpr (kMax) {
              const bool is_greater = z[i] > result[i] || z[i] != z[i];
              result[i] = is_greater ? z[i] : result[i];
              position[i] = is_greater ? here : position[i];
            } else {
              result[i] += z[i];
            }
          }
        }
      }
    }
    if constexpr (!kMax) {
      const auto count = static_cast<float>((rows.end - rows.begin) * (columns.end - columns.begin));
#pragma unroll
      for (int i = 0; i < kN; ++i) result[i] = result[i] / count;
    }
    const std::int64_t offset = row * walk.c + place.channel;
    store_output<T>(task.y, task.y_is_fp32, offset, result);
    if (kMax && task.saved != nullptr) store_bytes(task.saved + offset, position);
  }
}

/// The average over whole images. The lanes of the block share an image, and compute its sums like those of a
/// normalisation.
template <typename T, int kN>
__global__ void __launch_bounds__(kSumThreads, kSumBlocksPerMultiprocessor)
    pool_images(const PoolTask<T> task, std::int64_t image_rows, const RowWalk walk) {
  constexpr int kRows = 2;  // loaded together
  const RowPlace<kN> place(walk);
  const NormalizationCoefficients<kN> act(task.scale_bias, task.residual_scale_bias, walk.c,
                                          place.is_inside ? place.channel : 0);
  for (std::int64_t n = blockIdx.x; n < task.rows; n += gridDim.x) {
    ThreadSums<1, kN> sums;
    std::int64_t row = place.is_inside ? place.lane : image_rows;
    while (row < image_rows) {
      for (int run = 0; run < kRowsOfFp32 && row < image_rows; run += kRows) {
        PoolInput<T, kN> input[kRows];
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
          const std::int64_t at = row + k * walk.lanes;
          if (at < image_rows) input[k].load(task, (n * image_rows + at) * walk.c + place.channel);
        }
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
          if (row + k * walk.lanes >= image_rows) continue;
          const Floats<kN> z = input[k].values(task, act);
#pragma unroll
          for (int i = 0; i < kN; ++i) sums.run[0][i] += z[i];
        }
        row += kRows * walk.lanes;
      }
      sums.flush();
    }
    __syncthreads();
    sums.for_each_total(walk, [&](int, std::int64_t channel, double total) {
      const Floats<1> average{{static_cast<float>(total / static_cast<double>(image_rows))}};
      store_output<T>(task.y, task.y_is_fp32, n * walk.c + channel, average);
    });
    __syncthreads();  // the sums of the next image use the same place
  }
}

/// The data gradient of a pixel of x, gathered in a fixed order from all windows that cover it. With 3 x 3 windows and
/// stride 2, there are up to 2 x 2 such windows. All of them are loaded, in their stored type, before the first is
/// used, so that a pixel's gradient waits for memory only once. If y has two gradients, their sum is rounded as if it
/// had been stored, as a separate op that adds them would do.
template <typename T, typename Dy>
struct PoolGradient {
  static constexpr int kRowsAtOnce = 1;
  static constexpr bool kIsGathered = true;
  PoolGeometry geometry;
  std::int64_t c;
  const Dy* dy;
  const Dy* added;            // another gradient of y; may be null
  const std::uint8_t* saved;  // null: average

  template <int kN>
  __device__ Floats<kN> load(std::int64_t row, std::int64_t channel, std::int64_t) const {
    // In fp32, four windows would need too many registers. Only the last pooling uses fp32, and its windows do not
    // overlap.
    return gather < kN, std::is_same_v<Dy, T> ? 2 : 1 > (row, channel);
  }

 private:
  /// Loads kN numbers as they are stored. In fp32, these are two packs.
  template <int kN>
  __device__ static auto load_stored(const Dy* source) {
    if constexpr (std::is_same_v<Dy, T>)
      return load_vector<kN>(source);
    else
      return load_floats<kN>(source);
  }

  template <int kN, int kHeight>
  __device__ Floats<kN> gather(std::int64_t row, std::int64_t channel) const {
    constexpr int kWidth = 2;
    using Stored = decltype(load_stored<kN>(dy));
    const auto [n, h, w] = geometry.pixel(row);
    const Span rows = geometry.rows.windows_over(h), columns = geometry.columns.windows_over(w);
    Floats<kN> gradient{};
    for (int top = rows.begin; top < rows.end; top += kHeight)
      for (int left = columns.begin; left < columns.end; left += kWidth) {
        Stored values[kHeight][kWidth], others[kHeight][kWidth];
        Bytes<kN> positions[kHeight][kWidth];
#pragma unroll
        for (int i = 0; i < kHeight; ++i)
#pragma unroll
          for (int j = 0; j < kWidth; ++j) {
            if (top + i >= rows.end || left + j >= columns.end) continue;
            const std::int64_t offset = geometry.out_index(n, top + i, left + j) * c + channel;
            values[i][j] = load_stored<kN>(dy + offset);
            others[i][j] = added == nullptr ? Stored{} : load_stored<kN>(added + offset);
            positions[i][j] = saved == nullptr ? Bytes<kN>{} : load_bytes<kN>(saved + offset);
          }
#pragma unroll
        for (int i = 0; i < kHeight; ++i)
#pragma unroll
          for (int j = 0; j < kWidth; ++j)
            if (top + i < rows.end && left + j < columns.end)
              add_window(gradient, sum<kN>(values[i][j], others[i][j]), positions[i][j],
                         h - geometry.rows.begin(top + i), w - geometry.columns.begin(left + j), top + i, left + j);
      }
    return gradient;
  }

  template <int kN, typename Stored>
  __device__ Floats<kN> sum(const Stored& values, const Stored& others) const {
    Floats<kN> result;
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      const float value = values[k];
      result[k] = added == nullptr ? value : to_float(from_float<Dy>(value + others[k]));
    }
    return result;
  }

  /// Adds the gradient from window (p, q), in which the pixel has the position (down, right).
  template <int kN>
  __device__ void add_window(Floats<kN>& gradient, const Floats<kN>& values, const Bytes<kN>& positions, int down,
                             int right, int p, int q) const {
    if (saved != nullptr) {
      const int position = down * geometry.columns.kernel_size + right;
#pragma unroll
      for (int k = 0; k < kN; ++k) gradient[k] += positions[k] == position ? values[k] : 0.0f;
    } else {
      const Span rows = geometry.rows.pixels_under(p), columns = geometry.columns.pixels_under(q);
      const float share = 1.0f / static_cast<float>((rows.end - rows.begin) * (columns.end - columns.begin));
#pragma unroll
      for (int k = 0; k < kN; ++k) gradient[k] = fmaf(values[k], share, gradient[k]);
    }
  }
};

/// Backward without a normalisation.
template <typename T, int kN, typename Dy>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    pool_backward(const PoolGradient<T, Dy> gradient, T* dx, bool accumulate, std::int64_t rows, const RowWalk walk) {
  const RowPlace<kN> place(walk);
  if (!place.is_inside) return;
  for (std::int64_t row = place.row; row < rows; row += place.row_step) {
    const std::int64_t offset = row * walk.c + place.channel;
    Floats<kN> result = gradient.template load<kN>(row, place.channel, offset);
    if (accumulate) {
      const Vector<T, kN> before = load_vector<kN>(dx + offset);
#pragma unroll
      for (int i = 0; i < kN; ++i) result[i] += before[i];
    }
    store_floats(dx + offset, result);
  }
}

PoolAxis make_axis(const Pool2dDescription& d, int axis) {
  if (d.kernel_size == 0) return {d.x[axis], 1, d.x[axis], 1, 0};
  return {d.x[axis], d.y()[axis], d.kernel_size, d.stride, d.padding};
}

class CudaPool2d final : public CudaOp<Pool2dDescription> {
 public:
  CudaPool2d(const Pool2dDescription& d, const CudaContext& context)
      : PlannedOp(d, context),
        activation_{d.x[0] * d.x[1] * d.x[2], d.x[3], d.dtype},
        geometry_{make_axis(d, 1), make_axis(d, 2)},
        y_pixels_(d.y()[0] * d.y()[1] * d.y()[2]) {}

  OpMemoryRequirements memory_requirements() const override {
    if (d_.inference) return {};
    return {
        .backward_workspace_bytes = d_.normalization ? normalize_backward_workspace_bytes(activation_, context_) : 0,
        .saved_bytes = is_max() ? static_cast<std::size_t>(d_.y().n_elements()) : 0};
  }

  std::string describe() const override {
    std::string text = is_max() ? "own kernel: max" : "own kernel: average";
    if (!d_.normalization) return text;
    text += d_.normalization->store ? ", normalisation a pass" : ", normalisation fused forward";
    return d_.inference ? text : text + ", backward in one pass";
  }

  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override {
    dispatch(d_.dtype, [&]<typename T>(T*) {
      constexpr int kPack = Pack<T>::kSize;
      const PoolTask<T> task = make_task<T>(args, memory, stream);
      const bool packs = allows_packs<T>(activation_.c, task.x, task.residual, task.y, task.saved);
      const Launch work{
          .kind = packs ? "packs" : "elements",
          .bytes = moved_bytes(task.residual != nullptr ? 2 : 1, activation_.rows, activation_.c, sizeof(T)) +
                   bytes_of_y(size_bytes(d_.y_dtype), task.saved)};
      if (d_.kernel_size == 0 && !is_max()) {
        const std::int64_t image_rows = activation_.rows / task.rows;
        RowWalk walk(image_rows, activation_.c, packs ? kPack : 1, kSumThreads, 1, 1);
        const std::int64_t limit = std::max<std::int64_t>(block_limit() / walk.grid.blocks_y, 1);
        walk.grid.blocks = static_cast<unsigned>(std::min(task.rows, limit));
        walk.grid.work = work;
        launch(packs ? pool_images<T, kPack> : pool_images<T, 1>, walk.grid, stream, task, image_rows, walk);
        return;
      }
      RowWalk walk(task.rows, activation_.c, packs ? kPack : 1, kThreads, block_limit(), 1);
      walk.grid.work = work;
      auto* kernel = packs ? (is_max() ? pool_forward<T, kPack, true> : pool_forward<T, kPack, false>)
                           : (is_max() ? pool_forward<T, 1, true> : pool_forward<T, 1, false>);
      launch(kernel, walk.grid, stream, task, geometry_, walk);
    });
  }

  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override {
    const bool pending = d_.normalization.has_value();
    if (!pending && args.dx_mode == GradientMode::skip) return;
    dispatch(d_.dtype, [&]<typename T>(T*) {
      y_is_fp32() ? backward_of<T, float>(args, memory, stream) : backward_of<T, T>(args, memory, stream);
    });
  }

 private:
  template <typename T, typename Dy>
  void backward_of(const Backward& args, const OpMemory& memory, Stream& stream) {
    constexpr int kPack = Pack<T>::kSize;
    const auto* saved = is_max() ? static_cast<const std::uint8_t*>(memory.saved) : nullptr;
    const PoolGradient<T, Dy> gradient{geometry_, activation_.c, static_cast<const Dy*>(args.dy),
                                       static_cast<const Dy*>(args.added), saved};
    if (!d_.normalization) {
      const bool packs = allows_packs<T>(activation_.c, args.dy, args.added, args.dx, saved);
      RowWalk walk(activation_.rows, activation_.c, packs ? kPack : 1, kThreads, block_limit(), 1);
      walk.grid.work = {
          .kind = packs ? "packs" : "elements",
          .bytes = moved_bytes(1, activation_.rows, activation_.c, sizeof(T)) + bytes_of_y(sizeof(Dy), saved)};
      launch(packs ? pool_backward<T, kPack, Dy> : pool_backward<T, 1, Dy>, walk.grid, stream, gradient,
             static_cast<T*>(args.dx), args.dx_mode == GradientMode::accumulate, activation_.rows, walk);
      return;
    }
    const InputNormalization& normalization = *d_.normalization;
    const void* z = normalization.store ? args.normalization.z : nullptr;
    const NormalizeBackwardTask<T> task =
        make_backward_task<T>(activation_, normalization, args.x, args.normalization, z, args.gradient);
    const bool packs = allows_packs<T>(activation_.c, args.dy, args.added, saved, task.x, task.residual, task.operand,
                                       task.added, task.dz);
    run_normalize_backward(activation_, normalization, task, gradient, bytes_of_y(sizeof(Dy), saved), packs,
                           args.gradient, memory.workspace, context_, stream);
  }

  bool is_max() const { return d_.kind == Pool2dDescription::Kind::max; }
  bool y_is_fp32() const { return d_.y_dtype == DType::fp32; }
  /// Of y, and of what is saved for each of its elements.
  double bytes_of_y(std::size_t element_bytes, const std::uint8_t* saved) const {
    return moved_bytes(1, y_pixels_, activation_.c, element_bytes + (saved != nullptr ? 1 : 0));
  }
  unsigned block_limit() const { return context_.blocks(kBlocksPerMultiprocessor); }

  /// What forward reads. If the normalised input is stored, it has been computed by then.
  template <typename T>
  PoolTask<T> make_task(const Forward& args, const OpMemory& memory, Stream& stream) const {
    using Residual = InputNormalization::Residual;
    PoolTask<T> task;
    task.rows = y_pixels_;
    task.lower_bound = lower_bound(false);
    task.y_is_fp32 = y_is_fp32();
    task.x = static_cast<const T*>(args.x);
    task.y = args.y;
    task.saved = d_.inference || !is_max() ? nullptr : static_cast<std::uint8_t*>(memory.saved);
    if (!d_.normalization) return task;
    const InputNormalization& normalization = *d_.normalization;
    const NormalizationForward& n = args.normalization;
    if (normalization.store) {
      normalize(activation_, normalization, args.x, n, n.z, context_, stream);
      task.x = static_cast<const T*>(n.z);
      return task;
    }
    task.lower_bound = lower_bound(normalization.relu);
    task.scale_bias = n.scale_bias;
    if (normalization.residual != Residual::none) task.residual = static_cast<const T*>(n.residual);
    if (normalization.residual == Residual::normalized) task.residual_scale_bias = n.residual_scale_bias;
    return task;
  }

  ActivationShape activation_;
  PoolGeometry geometry_;
  std::int64_t y_pixels_;
};

}  // namespace

std::unique_ptr<Pool2d> make_pool2d(const Pool2dDescription& d, const CudaContext& context) {
  constexpr std::int64_t kMaxPixels = std::int64_t{1} << 31;  // fast_divide.h
  dispatch(d.dtype, [](auto*) {});                            // rejects other types
  require(d.x_layout == Layout::nhwc && d.y_layout == Layout::nhwc, ErrorCode::not_supported,
          "pooling on the device needs nhwc, not {} to {}", name(d.x_layout), name(d.y_layout));
  const Shape y = d.y();
  require(d.x[0] * d.x[1] * d.x[2] < kMaxPixels && y[0] * y[1] * y[2] < kMaxPixels, ErrorCode::not_supported,
          "pooling on the device supports fewer than 2^31 pixels, not {} to {}", d.x.text(), y.text());
  return std::make_unique<CudaPool2d>(d, context);
}

}  // namespace lockstep::cuda
