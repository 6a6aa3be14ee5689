// Max pooling, average pooling and global average pooling, with a pending normalisation of the input.
// Forward applies it while reading; backward gathers the data gradient, then goes back through it in a second pass.
// Max: in a tie, the first in window order (row by row) gets the gradient, and NaN wins, both as in PyTorch. `saved`
// holds the position of the maximum in its window, one byte per element of y. Averages are summed in fp64.
// x and y may have different layouts.
#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/simd.h"
#include "kernels/cpu/normalization.h"
#include "lockstep/ops/pool2d.h"

namespace lockstep::cpu {

/// The shapes, and which pixels (h, w) are covered by which windows (p, q).
struct PoolGeometry {
  std::int64_t h = 0, w = 0, c = 0, out_h = 0, out_w = 0;
  std::int64_t window_w = 0, stride = 1, padding = 0;
  Layout x_layout = Layout::nhwc, y_layout = Layout::nhwc;
  std::int64_t x_stride = 0, y_stride = 0;  // elements from pixel to pixel: c or 16

  /// The offset of a channel of pixel (0, 0).
  std::int64_t base(std::int64_t n, std::int64_t channel, std::int64_t pixels, Layout layout) const {
    if (layout == Layout::nhwc) return n * pixels * c + channel;
    return (n * (c / 16) + channel / 16) * pixels * 16 + channel % 16;
  }
  std::int64_t x_base(std::int64_t n, std::int64_t channel) const { return base(n, channel, h * w, x_layout); }
  std::int64_t y_base(std::int64_t n, std::int64_t channel) const { return base(n, channel, out_h * out_w, y_layout); }

  /// The real rows that each window row p covers, and the windows that cover each row h; likewise for columns. They are
  /// computed when planning, since the divisions would cost more than the pooling.
  const Range* rows = nullptr;                 // (out_h)
  const Range* columns = nullptr;              // (out_w)
  const Range* windows_over_row = nullptr;     // (h)
  const Range* windows_over_column = nullptr;  // (w)
};

enum class PoolInput { direct, normalized, residual_plain, residual_normalized };

/// Element types of x and dx, and of y and dy.
template <typename XElement, typename YElement>
struct PoolTypes {
  using X = XElement;
  using Y = YElement;
};

template <typename Types>
struct PoolTask {
  PoolGeometry geometry;
  bool max = true;
  PoolInput input = PoolInput::direct;
  float lower_bound = 0;  // of the normalised input: 0 with ReLU, else -infinity
  const typename Types::X* x = nullptr;
  NormalizationForward normalization{};
  typename Types::Y* y = nullptr;
  std::uint8_t* saved = nullptr;  // null: no backward follows
};

template <typename Types>
struct PoolBackwardTask {
  PoolGeometry geometry;
  bool max = true;
  bool accumulate = false;
  const typename Types::Y* dy = nullptr;
  const typename Types::Y* added = nullptr;  // may be null
  const std::uint8_t* saved = nullptr;
  typename Types::X* dx = nullptr;
};

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/pool2d_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

/// One axis: the pixels of the image that each window covers, and the windows that cover each pixel.
struct PoolAxis {
  PoolAxis(std::int64_t size, std::int64_t out_size, std::int64_t kernel_size, std::int64_t stride,
           std::int64_t padding) {
    for (std::int64_t p = 0; p < out_size; ++p) {
      const std::int64_t begin = p * stride - padding;
      under.push_back({std::max<std::int64_t>(begin, 0), std::min(begin + kernel_size, size)});
    }
    for (std::int64_t pixel = 0; pixel < size; ++pixel) {
      const std::int64_t too_early = pixel + padding - kernel_size;  // a window that begins here ends before the pixel
      over.push_back({too_early < 0 ? 0 : too_early / stride + 1, std::min((pixel + padding) / stride + 1, out_size)});
    }
  }
  std::vector<Range> under, over;
};

template <typename Types>
class CpuPool2d final : public CpuOp<Pool2dDescription> {
 public:
  CpuPool2d(const Pool2dDescription& d, const CpuContext& context)
      : PlannedOp(d, context),
        activation_{d.x[0], d.x[1] * d.x[2], d.x[3], d.x_layout, d.dtype},
        max_(d.kind == Pool2dDescription::Kind::max),
        parts_(part_count(context, d.x.n_elements() * std::int64_t{sizeof(X)})),
        rows_(make_axis(d, 1)),
        columns_(make_axis(d, 2)) {
    const Shape y = d.y();
    geometry_ = {.h = d.x[1],
                 .w = d.x[2],
                 .c = d.x[3],
                 .out_h = y[1],
                 .out_w = y[2],
                 .window_w = d.kernel_size == 0 ? d.x[2] : d.kernel_size,
                 .stride = d.kernel_size == 0 ? 1 : d.stride,
                 .padding = d.kernel_size == 0 ? 0 : d.padding,
                 .x_layout = d.x_layout,
                 .y_layout = d.y_layout,
                 .x_stride = d.x_layout == Layout::nhwc ? d.x[3] : 16,
                 .y_stride = d.y_layout == Layout::nhwc ? d.x[3] : 16,
                 .rows = rows_.under.data(),
                 .columns = columns_.under.data(),
                 .windows_over_row = rows_.over.data(),
                 .windows_over_column = columns_.over.data()};
  }

  OpMemoryRequirements memory_requirements() const override {
    if (d_.inference) return {};
    return {
        .backward_workspace_bytes = d_.normalization ? normalize_backward_workspace_bytes(activation_, context_) : 0,
        .saved_bytes = max_ ? static_cast<std::size_t>(d_.y().n_elements()) : 0};
  }

  std::string describe() const override {
    std::string text = max_ ? "own kernel: max" : "own kernel: average";
    if (!d_.normalization) return text;
    text += d_.normalization->store ? ", normalisation a pass" : ", normalisation fused forward";
    return d_.inference ? text : text + ", backward in two passes";
  }

  void run_forward(const Forward& args, const OpMemory& memory, Stream&) override {
    PoolTask<Types> task{.geometry = geometry_, .max = max_, .x = static_cast<const X*>(args.x)};
    task.y = static_cast<Y*>(args.y);
    task.saved = d_.inference ? nullptr : static_cast<std::uint8_t*>(memory.saved);
    if (d_.normalization) add_normalization(args, task);
    const Range units{0, d_.x[0] * units_an_image(geometry_.out_h)};
    run_ranges(parts_, units.end, [&](Range range) { LOCKSTEP_DISPATCH(pool_forward<Types>)(task, range); });
  }

  // With a normalisation, the data gradient is first written to dz (or added, if dz is `added`), and then goes back
  // through the normalisation.
  void run_backward(const Backward& args, const OpMemory& memory, Stream&) override {
    const bool pending = d_.normalization.has_value();
    if (!pending && args.dx_mode == GradientMode::skip) return;
    NormalizationBackward gradient = args.gradient;
    const bool onto_added = pending && gradient.added == gradient.dz;
    PoolBackwardTask<Types> task{.geometry = geometry_, .max = max_};
    task.dy = static_cast<const Y*>(args.dy);
    task.added = static_cast<const Y*>(args.added);
    task.saved = static_cast<const std::uint8_t*>(memory.saved);
    task.dx = static_cast<X*>(pending ? gradient.dz : args.dx);
    task.accumulate = pending ? onto_added : args.dx_mode == GradientMode::accumulate;
    const std::int64_t units = d_.x[0] * units_an_image(geometry_.h);
    run_ranges(parts_, units, [&](Range range) { LOCKSTEP_DISPATCH(pool_backward<Types>)(task, range); });
    if (!pending) return;
    if (onto_added) gradient.added = nullptr;
    const InputNormalization& normalization = *d_.normalization;
    const void* z = normalization.store ? args.normalization.z : nullptr;
    normalize_backward(activation_, normalization, args.x, args.normalization, z, task.dx, gradient, memory.workspace,
                       context_);
  }

 private:
  using X = typename Types::X;
  using Y = typename Types::Y;

  static PoolAxis make_axis(const Pool2dDescription& d, int axis) {
    if (d.kernel_size == 0) return {d.x[axis], 1, d.x[axis], 1, 0};
    return {d.x[axis], d.y()[axis], d.kernel_size, d.stride, d.padding};
  }

  /// The units that are divided among threads: rows of pixels, or blocks of 16 channels.
  std::int64_t units_an_image(std::int64_t height) const {
    return geometry_.x_layout == Layout::nhwc ? height : geometry_.c / 16;
  }

  void add_normalization(const Forward& args, PoolTask<Types>& task) const {
    const InputNormalization& normalization = *d_.normalization;
    const NormalizationForward& n = args.normalization;
    if (normalization.store) {
      normalize(activation_, normalization, task.x, n, n.z, context_);
      task.x = static_cast<const X*>(n.z);
      return;
    }
    using Residual = InputNormalization::Residual;
    task.lower_bound = normalization.relu ? 0.0f : -std::numeric_limits<float>::infinity();
    task.normalization = n;
    task.input = normalization.residual == Residual::none    ? PoolInput::normalized
                 : normalization.residual == Residual::plain ? PoolInput::residual_plain
                                                             : PoolInput::residual_normalized;
  }

  ActivationShape activation_;
  PoolGeometry geometry_;
  bool max_;
  int parts_;
  PoolAxis rows_, columns_;
};

}  // namespace

std::unique_ptr<Pool2d> make_pool2d(const Pool2dDescription& d, const CpuContext& context) {
  require_float_or_bf16(d.dtype, "pooling");
  require((d.x_layout == Layout::nhwc && d.y_layout == Layout::nhwc) || d.x[3] % 16 == 0, ErrorCode::op_description,
          "channel blocks of 16 need a multiple of 16 channels, but {} has {}", d.x.text(), d.x[3]);
  if (d.dtype == DType::fp32) return std::make_unique<CpuPool2d<PoolTypes<float, float>>>(d, context);
  if (d.y_dtype == DType::fp32) return std::make_unique<CpuPool2d<PoolTypes<Bf16, float>>>(d, context);
  return std::make_unique<CpuPool2d<PoolTypes<Bf16, Bf16>>>(d, context);
}

}  // namespace lockstep::cpu
