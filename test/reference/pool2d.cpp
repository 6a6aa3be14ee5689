#include "test/reference/pool2d.h"

#include <algorithm>
#include <limits>

#include "lockstep/error.h"
#include "test/reference/ops.h"

namespace lockstep::reference {
namespace {

/// The pixels inside the image, [h0, h1) x [w0, w1), under the window of output pixel (p, q).
struct Window {
  Window(const Pool2dDescription& d, Index p, Index q)
      : h0(d.kernel_size == 0 ? 0 : p * d.stride - d.padding),
        w0(d.kernel_size == 0 ? 0 : q * d.stride - d.padding),
        h1(std::min<Index>(d.x[1], d.kernel_size == 0 ? d.x[1] : h0 + d.kernel_size)),
        w1(std::min<Index>(d.x[2], d.kernel_size == 0 ? d.x[2] : w0 + d.kernel_size)) {
    h0 = std::max<Index>(h0, 0);
    w0 = std::max<Index>(w0, 0);
  }
  bool contains(Index h, Index w) const { return h >= h0 && h < h1 && w >= w0 && w < w1; }
  double n_elements() const { return static_cast<double>((h1 - h0) * (w1 - w0)); }
  Index h0, w0, h1, w1;
};

template <typename T>
struct Pool {
  Pool(const Pool2dDescription& d, const T* x, const PendingForward<T>& args)
      : d(d), z{d.x[0] * d.x[1] * d.x[2], d.x[3], x, d.normalization, args} {}
  const Pool2dDescription& d;
  Input<T> z;

  Index row(Index n, Index h, Index w) const { return (n * d.x[1] + h) * d.x[2] + w; }

  /// The row of the largest element under the window; the first of several equal ones.
  Index greatest(const Window& window, Index n, Index c) const {
    Index best = -1;
    double greatest = -std::numeric_limits<double>::infinity();
    for (Index h = window.h0; h < window.h1; ++h)
      for (Index w = window.w0; w < window.w1; ++w) {
        const double value = z(row(n, h, w), c);
        if (best >= 0 && !(value > greatest)) continue;
        greatest = value;
        best = row(n, h, w);
      }
    return best;
  }

  double forward(const Window& window, Index n, Index c) const {
    if (d.kind == Pool2dDescription::Kind::max) return z(greatest(window, n, c), c);
    double sum = 0;
    for (Index h = window.h0; h < window.h1; ++h)
      for (Index w = window.w0; w < window.w1; ++w) sum += z(row(n, h, w), c);
    return sum / window.n_elements();
  }
};

}  // namespace

template <typename T>
void pool2d_forward(const Pool2dDescription& d, const Pool2dForward<T>& args) {
  const Pool<T> pool(d, args.x, args.normalization);
  const Shape y = d.y();
  pool.z.store();
#pragma omp parallel for collapse(3) if (d.x.n_elements() >= kParallelFrom)
  for (Index n = 0; n < y[0]; ++n)
    for (Index p = 0; p < y[1]; ++p)
      for (Index q = 0; q < y[2]; ++q)
        for (Index c = 0; c < y[3]; ++c)
          args.y[((n * y[1] + p) * y[2] + q) * y[3] + c] = static_cast<T>(pool.forward(Window(d, p, q), n, c));
}

template <typename T>
void pool2d_backward(const Pool2dDescription& d, const Pool2dBackward<T>& args) {
  if (!d.normalization && args.dx_mode == GradientMode::skip) return;
  const Pool<T> pool(d, args.x, args.normalization);
  const Shape y = d.y();
  input_backward(pool.z, args.gradient, args.dx, args.dx_mode, [&](Index row, double* dz) {
    const Index n = row / (d.x[1] * d.x[2]);
    const Index h = row / d.x[2] % d.x[1];
    const Index w = row % d.x[2];
    for (Index p = 0; p < y[1]; ++p)
      for (Index q = 0; q < y[2]; ++q) {
        const Window window(d, p, q);
        if (!window.contains(h, w)) continue;
        for (Index c = 0; c < y[3]; ++c) {
          const Index i = ((n * y[1] + p) * y[2] + q) * y[3] + c;
          const double dy = double{args.dy[i]} + (args.added ? double{args.added[i]} : 0.0);
          if (d.kind == Pool2dDescription::Kind::average) dz[c] += dy / window.n_elements();
          if (d.kind == Pool2dDescription::Kind::max && pool.greatest(window, n, c) == row) dz[c] += dy;
        }
      }
  });
}

template void pool2d_forward(const Pool2dDescription&, const Pool2dForward<float>&);
template void pool2d_forward(const Pool2dDescription&, const Pool2dForward<double>&);
template void pool2d_backward(const Pool2dDescription&, const Pool2dBackward<float>&);
template void pool2d_backward(const Pool2dDescription&, const Pool2dBackward<double>&);

namespace {

class ReferencePool2d final : public Pool2d {
 public:
  explicit ReferencePool2d(const Pool2dDescription& d) : d_(d) {
    require(d.dtype == DType::fp32 && d.x_layout == Layout::nhwc && d.y_layout == Layout::nhwc,
            ErrorCode::not_supported, "the reference pooling computes only in fp32 and nhwc");
    require(d.kernel_size == 0 || d.padding < d.kernel_size, ErrorCode::not_supported,
            "pooling with kernel size {} and padding {}: windows without a real element", d.kernel_size, d.padding);
  }
  std::string describe() const override { return "reference: all fused"; }
  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    pool2d_forward<float>(d_,
                          {static_cast<const float*>(args.x), static_cast<float*>(args.y), typed(args.normalization)});
  }
  void run_backward(const Backward& args, const OpMemory&, Stream&) override {
    pool2d_backward<float>(d_, {static_cast<const float*>(args.dy), static_cast<const float*>(args.added),
                                static_cast<const float*>(args.x), static_cast<float*>(args.dx), args.dx_mode,
                                typed(args.normalization), typed(args.gradient)});
  }

 private:
  Pool2dDescription d_;
};

}  // namespace

std::unique_ptr<Pool2d> make_pool2d(const Pool2dDescription& description, const Context&) {
  return std::make_unique<ReferencePool2d>(description);
}

}  // namespace lockstep::reference
