// Pooling of x or of a pending normalisation z of x (normalization.h). Max ignores padding. Average divides by the
// number of real elements under the window. A kernel size of 0 covers the whole image: global
// average pooling, y is (N, 1, 1, C).
// Shapes: x (N, H, W, C), y (N, H', W', C).
#pragma once

#include <optional>

#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/op.h"
#include "lockstep/ops/normalization.h"
#include "lockstep/shape.h"

namespace lockstep {

struct Pool2dDescription {
  using Op = class Pool2d;
  static constexpr std::string_view kName = "pool2d";

  enum class Kind : std::uint8_t { max, average };
  Kind kind = Kind::max;
  Shape x;  // (N, H, W, C)
  int kernel_size = 3;
  int stride = 2;
  int padding = 1;
  DType dtype = DType::fp32;    // of x, dx, z, dz
  DType y_dtype = DType::fp32;  // of y, dy: dtype, or fp32
  Layout x_layout = Layout::nhwc;
  Layout y_layout = Layout::nhwc;
  std::optional<InputNormalization> normalization{};
  bool inference = false;

  Shape y() const {
    if (kernel_size == 0) return {x[0], 1, 1, x[3]};
    return {x[0], (x[1] + 2 * padding - kernel_size) / stride + 1, (x[2] + 2 * padding - kernel_size) / stride + 1,
            x[3]};
  }
};

inline void require_possible(const Pool2dDescription& d) {
  require(d.y_dtype == d.dtype || d.y_dtype == DType::fp32, ErrorCode::not_supported,
          "pooling returns the type of its input or fp32, not {}", name(d.y_dtype));
  require(d.x.rank() == 4 && d.x.n_elements() > 0, ErrorCode::op_description,
          "pooling needs an input (N, H, W, C) that is not empty, not {}", d.x.text());
  require(d.kernel_size == 0 || (d.kernel_size > d.padding && d.padding >= 0 && d.stride > 0),
          ErrorCode::op_description,
          "pooling needs a kernel size greater than its padding and a stride of at least 1, but has kernel size {}, "
          "padding {}, stride {}",
          d.kernel_size, d.padding, d.stride);
  const Shape y = d.y();
  require(y[1] > 0 && y[2] > 0, ErrorCode::op_description,
          "a pooling kernel size of {} with padding {} does not fit {}", d.kernel_size, d.padding, d.x.text());
  const std::int64_t window_elements =
      d.kernel_size == 0 ? d.x[1] * d.x[2] : std::int64_t{d.kernel_size} * d.kernel_size;
  require(d.kind == Pool2dDescription::Kind::average || d.inference || window_elements <= 256, ErrorCode::not_supported,
          "max pooling trains with windows of up to 256 elements, not {}", window_elements);
}

struct Pool2dCalls {
  struct Forward {
    const void* x = nullptr;
    void* y = nullptr;
    NormalizationForward normalization;
  };
  struct Backward {
    const void* dy = nullptr;
    const void* added = nullptr;  // shape of dy or null: another gradient of y; dy + added is rounded to y_dtype
    const void* x = nullptr;
    void* dx = nullptr;  // only without normalisation
    GradientMode dx_mode = GradientMode::overwrite;
    NormalizationForward normalization;
    NormalizationBackward gradient;
  };
};

class Pool2d : public TwoWayOp<Pool2dDescription, Pool2dCalls> {};

}  // namespace lockstep
