#include "test/reference/conv2d.h"

#include <vector>

#include "test/reference/identity_layout.h"
#include "test/reference/ops.h"

namespace lockstep::reference {
namespace {

/// The geometry of the window: maps rows between input and output, for window element (r, s). A row is one pixel.
struct Geometry {
  explicit Geometry(const Conv2dDescription& d)
      : height(d.x[1]),
        width(d.x[2]),
        channels(d.x[3]),
        out_height(d.y()[1]),
        out_width(d.y()[2]),
        out_channels(d.out_channels),
        kernel_size(d.kernel_size),
        stride(d.stride),
        padding(d.padding) {}
  Index height, width, channels, out_height, out_width, out_channels, kernel_size, stride, padding;

  /// The row of the input under (r, s) at output row `out_row`, or -1 in the padding.
  Index input_row(Index out_row, Index r, Index s) const {
    const Index h = out_row / out_width % out_height * stride + r - padding;
    const Index w = out_row % out_width * stride + s - padding;
    if (h < 0 || h >= height || w < 0 || w >= width) return -1;
    return (out_row / (out_height * out_width) * height + h) * width + w;
  }

  /// The row of the output that reads input row `row` through (r, s), or -1.
  Index output_row(Index row, Index r, Index s) const {
    const Index p = row / width % height + padding - r;
    const Index q = row % width + padding - s;
    if (p < 0 || p % stride || p / stride >= out_height || q < 0 || q % stride || q / stride >= out_width) return -1;
    return (row / (height * width) * out_height + p / stride) * out_width + q / stride;
  }

  Index weight_index(Index k, Index c, Index r, Index s) const {
    return ((k * channels + c) * kernel_size + r) * kernel_size + s;
  }
};

/// Weights in double as (R, S, C, K) or (R, S, K, C), so that the innermost loop reads consecutive memory.
template <typename T>
std::vector<double> turned_weight(const Geometry& g, const T* weight, bool k_last) {
  std::vector<double> turned(static_cast<std::size_t>(g.out_channels * g.channels * g.kernel_size * g.kernel_size));
  for (Index r = 0; r < g.kernel_size; ++r)
    for (Index s = 0; s < g.kernel_size; ++s)
      for (Index k = 0; k < g.out_channels; ++k)
        for (Index c = 0; c < g.channels; ++c) {
          const Index inner = k_last ? c * g.out_channels + k : k * g.channels + c;
          turned[static_cast<std::size_t>((r * g.kernel_size + s) * g.channels * g.out_channels + inner)] =
              weight[g.weight_index(k, c, r, s)];
        }
  return turned;
}

template <typename T>
Input<T> make_input(const Conv2dDescription& d, const T* x, const PendingForward<T>& args) {
  return {d.x[0] * d.x[1] * d.x[2], d.x[3], x, d.normalization, args};
}

template <typename T>
void weight_gradient(const Geometry& g, const Input<T>& z, Index out_rows, const Conv2dBackward<T>& args) {
  const Index taps = g.kernel_size * g.kernel_size;
#pragma omp parallel for collapse(2) schedule(dynamic) if (z.rows * g.channels >= kParallelFrom)
  for (Index tap = 0; tap < taps; ++tap)
    for (Index c = 0; c < g.channels; ++c) {
      std::vector<double> dw(static_cast<std::size_t>(g.out_channels));
      for (Index out_row = 0; out_row < out_rows; ++out_row) {
        const Index row = g.input_row(out_row, tap / g.kernel_size, tap % g.kernel_size);
        if (row < 0) continue;
        const double value = z(row, c);
        const T* dy = args.dy + out_row * g.out_channels;
#pragma omp simd
        for (Index k = 0; k < g.out_channels; ++k) dw[static_cast<std::size_t>(k)] += value * dy[k];
      }
      for (Index k = 0; k < g.out_channels; ++k)
        put(args.dweight[g.weight_index(k, c, tap / g.kernel_size, tap % g.kernel_size)],
            dw[static_cast<std::size_t>(k)], args.dweight_mode);
    }
}

}  // namespace

template <typename T>
void conv2d_forward(const Conv2dDescription& d, const Conv2dForward<T>& args) {
  const Geometry g(d);
  const Input<T> z = make_input(d, args.x, args.normalization);
  const Index out_rows = d.x[0] * g.out_height * g.out_width;
  const Index out_channels = g.out_channels;
  const std::vector<double> weight = turned_weight(g, args.weight, true);
  std::vector<double> y(static_cast<std::size_t>(out_rows * out_channels));
  z.store();
#pragma omp parallel for schedule(dynamic) if (z.rows * g.channels >= kParallelFrom)
  for (Index out_row = 0; out_row < out_rows; ++out_row) {
    double* out = y.data() + out_row * out_channels;
    for (Index tap = 0; tap < g.kernel_size * g.kernel_size; ++tap) {
      const Index row = g.input_row(out_row, tap / g.kernel_size, tap % g.kernel_size);
      if (row < 0) continue;
      for (Index c = 0; c < g.channels; ++c) {
        const double value = z(row, c);
        const double* w = weight.data() + (tap * g.channels + c) * out_channels;
#pragma omp simd
        for (Index k = 0; k < out_channels; ++k) out[k] += value * w[k];
      }
    }
  }
  for (std::size_t i = 0; i < y.size(); ++i) args.y[i] = static_cast<T>(y[i]);
  if (!d.statistics) return;
  std::fill(args.statistics, args.statistics + 2 * out_channels, 0.0);
  for (Index out_row = 0; out_row < out_rows; ++out_row)
    for (Index k = 0; k < out_channels; ++k) {
      const double value = y[static_cast<std::size_t>(out_row * out_channels + k)];
      args.statistics[k] += value;
      args.statistics[out_channels + k] += value * value;
    }
}

template <typename T>
void conv2d_backward(const Conv2dDescription& d, const Conv2dBackward<T>& args) {
  const Geometry g(d);
  const Input<T> z = make_input(d, args.x, args.normalization);
  const Index out_rows = d.x[0] * g.out_height * g.out_width;
  // Must come before dz is written: that may overwrite the stored z, while only x and the residual are read here.
  if (args.dweight_mode != GradientMode::skip) weight_gradient(g, z, out_rows, args);
  if (!d.input_gradient || (!d.normalization && args.dx_mode == GradientMode::skip)) return;
  const std::vector<double> weight = turned_weight(g, args.weight, false);
  input_backward(z, args.gradient, args.dx, args.dx_mode, [&](Index row, double* dz) {
    for (Index tap = 0; tap < g.kernel_size * g.kernel_size; ++tap) {
      const Index out_row = g.output_row(row, tap / g.kernel_size, tap % g.kernel_size);
      if (out_row < 0) continue;
      for (Index k = 0; k < g.out_channels; ++k) {
        const double dy = args.dy[out_row * g.out_channels + k];
        const double* w = weight.data() + (tap * g.out_channels + k) * g.channels;
#pragma omp simd
        for (Index c = 0; c < g.channels; ++c) dz[c] += dy * w[c];
      }
    }
  });
}

template void conv2d_forward(const Conv2dDescription&, const Conv2dForward<float>&);
template void conv2d_forward(const Conv2dDescription&, const Conv2dForward<double>&);
template void conv2d_backward(const Conv2dDescription&, const Conv2dBackward<float>&);
template void conv2d_backward(const Conv2dDescription&, const Conv2dBackward<double>&);

namespace {

class ReferenceConv2d final : public Conv2d {
 public:
  explicit ReferenceConv2d(const Conv2dDescription& d)
      : d_(d), layout_(identity_layout(d.weight_layout, d.out_channels * d.x[3] * d.kernel_size * d.kernel_size)) {
    require(d.dtype == DType::fp32 && d.x_layout == Layout::nhwc && d.y_layout == Layout::nhwc,
            ErrorCode::not_supported, "the reference convolution computes only in fp32 and nhwc");
  }
  std::string describe() const override { return "reference: all fused"; }
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return layout_; }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    conv2d_forward<float>(d_, {static_cast<const float*>(args.x), static_cast<const float*>(args.weight),
                               static_cast<float*>(args.y), args.statistics.as<double>(), typed(args.normalization)});
  }
  void run_backward(const Backward& args, const OpMemory&, Stream&) override {
    conv2d_backward<float>(
        d_, {static_cast<const float*>(args.dy), static_cast<const float*>(args.x),
             static_cast<const float*>(args.weight), args.dweight.as<float>(), args.dweight_mode,
             static_cast<float*>(args.dx), args.dx_mode, typed(args.normalization), typed(args.gradient)});
  }

 private:
  Conv2dDescription d_;
  std::shared_ptr<const ParameterLayout> layout_;
};

}  // namespace

std::unique_ptr<Conv2d> make_conv2d(const Conv2dDescription& description, const Context&) {
  return std::make_unique<ReferenceConv2d>(description);
}

}  // namespace lockstep::reference
