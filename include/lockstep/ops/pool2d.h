// Pooling of x or of a pending normalisation z of x (normalization.h). Max ignores padding. Average divides by the
// number of real elements under the window. A kernel size of 0 covers the whole image: global
// average pooling, y is (N, 1, 1, C).
// Shapes: x (N, H, W, C), y (N, H', W', C). Planning throws op_description for impossible shapes, and not_supported for
// types and layouts that the backend does not support.
#pragma once

#include <optional>

#include "lockstep/dtype.h"
#include "lockstep/op.h"
#include "lockstep/ops/normalization.h"
#include "lockstep/shape.h"

namespace lockstep {

class Pool2d;

struct Pool2dDescription {
  using Op = Pool2d;
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

class Pool2d : public Op {
 public:
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
  void forward(const Forward& args, const OpMemory& memory, Stream& stream) {
    submit("pool2d.forward", &Pool2d::run_forward, args, memory, stream);
  }
  void backward(const Backward& args, const OpMemory& memory, Stream& stream) {
    submit("pool2d.backward", &Pool2d::run_backward, args, memory, stream);
  }

 private:
  virtual void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) = 0;
  virtual void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) = 0;
};

}  // namespace lockstep
