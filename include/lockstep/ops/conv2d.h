// Convolution (cross-correlation) without bias, of x or of a pending normalisation z of x (normalization.h):
//     y[n,h,w,k] = sum_{r,s,c} z[n, h*stride+r-padding, w*stride+s-padding, c] * weight[k,c,r,s]
// Shapes: x is (N, H, W, C), y is (N, H', W', K), and the weight is (K, C, R, S) in canonical form. In memory, the
// weight has the layout weight_layout() and the type of x. Its gradient is fp32. If the op offers it, the gradient can
// have the type of x instead, and the caller converts it to fp32 for many weights at once. Optionally, the forward pass
// sums y and y^2 per output channel, which the next batch norm needs.
#pragma once

#include <memory>
#include <optional>

#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/op.h"
#include "lockstep/ops/normalization.h"
#include "lockstep/shape.h"

namespace lockstep {

struct Conv2dDescription {
  using Op = class Conv2d;
  static constexpr std::string_view kName = "conv2d";

  Shape x;  // (N, H, W, C)
  std::int64_t out_channels = 0;
  int kernel_size = 3;  // R = S
  int stride = 1;
  int padding = 1;
  DType dtype = DType::fp32;  // of x, y and the weight
  bool tf32 = false;          // fp32 may be rounded to tf32 inside the multiply
  Layout x_layout = Layout::nhwc;
  Layout y_layout = Layout::nhwc;
  std::optional<InputNormalization> normalization{};       // of x
  bool statistics = false;                                 // of y: sum and sum of squares per output channel
  bool fp32_sums = false;                                  // statistics and sums may be fp32: statistics_dtype()
  bool input_gradient = true;                              // false: the network's first layer
  bool inference = false;                                  // backward is never called
  std::shared_ptr<const ParameterLayout> weight_layout{};  // null: the op chooses one

  /// (N, H', W', K)
  Shape y() const {
    return {x[0], (x[1] + 2 * padding - kernel_size) / stride + 1, (x[2] + 2 * padding - kernel_size) / stride + 1,
            out_channels};
  }
};

/// "conv2d (32, 32, 32, 64) -> 128, 3x3/2"
inline std::string text(const Conv2dDescription& d) {
  return fmt::format("conv2d {} -> {}, {}x{}/{}", d.x.text(), d.out_channels, d.kernel_size, d.kernel_size, d.stride);
}

inline void require_possible(const Conv2dDescription& d) {
  require(d.x.rank() == 4 && d.x.n_elements() > 0 && d.out_channels > 0, ErrorCode::op_description,
          "{}: x must be (N, H, W, C) and out_channels positive", text(d));
  require(d.kernel_size > 0 && d.stride > 0 && d.padding >= 0, ErrorCode::op_description,
          "{}: kernel size and stride must be positive, padding {} not negative", text(d), d.padding);
  const std::int64_t smallest = d.kernel_size - 2 * d.padding;
  require(d.x[1] >= smallest && d.x[2] >= smallest, ErrorCode::op_description,
          "{}: a kernel size of {} with padding {} needs images of at least {} pixels, found {} x {}", text(d),
          d.kernel_size, d.padding, smallest, d.x[1], d.x[2]);
}

/// What a call of backward computes. `rest` is everything but the weight gradient: the data gradient and the gradient
/// through the normalisation.
enum class BackwardPart : std::uint8_t { all, weight_gradient, rest };

struct Conv2dCalls {
  struct Forward {
    const void* x = nullptr;
    const void* weight = nullptr;  // in weight_layout()
    void* y = nullptr;
    TypedPointer statistics{};  // (2, K) in statistics_dtype(), overwritten: sum y, sum y^2
    NormalizationForward normalization;
  };
  struct Backward {
    const void* dy = nullptr;
    const void* x = nullptr;  // as in forward
    const void* weight = nullptr;
    TypedPointer dweight{};  // in weight_layout(); fp32, or in the type of x (gives_low_precision_dweight())
    GradientMode dweight_mode = GradientMode::overwrite;
    void* dx = nullptr;  // only without normalisation; else NormalizationBackward::dz is written
    GradientMode dx_mode = GradientMode::overwrite;
    NormalizationForward normalization;  // the same pointers as in forward; z holds what forward stored
    NormalizationBackward gradient;
    BackwardPart part = BackwardPart::all;  // other parts only if workspace_of_parts() has a value
  };
  /// Bytes of the workspaces with which the parts of backward may be called one by one, in any order or concurrently.
  struct PartWorkspaces {
    std::size_t weight_gradient = 0, rest = 0;
  };
};

class Conv2d : public TwoWayOp<Conv2dDescription, Conv2dCalls> {
 public:
  virtual std::shared_ptr<const ParameterLayout> weight_layout() const = 0;
  /// The types of Forward's statistics and of NormalizationBackward's sums: fp64, or fp32 where the description allows
  /// it and the kernels compute only fp32.
  virtual DType statistics_dtype() const { return DType::fp64; }
  virtual DType sums_dtype() const { return DType::fp64; }
  /// Whether Backward::dweight may have the type of x, because the kernels write that type. It is then overwritten.
  virtual bool gives_low_precision_dweight() const { return false; }
  /// No value if backward only runs as a whole.
  virtual std::optional<PartWorkspaces> workspace_of_parts() const { return std::nullopt; }
};

}  // namespace lockstep
