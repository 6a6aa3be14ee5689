// Gated linear units (Shazeer, "GLU Variants Improve Transformer", 2020, equation 6), the activation of a decoder's
// feed-forward layer, on the result of one matmul for gate and up together. A row of x is [gate | up]:
//     y = f(gate) * up,  dgate = dy * up * f'(gate),  dup = dy * f(gate)
// f is silu (SwiGLU) or another activation function (gelu: GeGLU; activation_function.h). Values are computed in fp32
// and rounded once.
#pragma once

#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/op.h"
#include "lockstep/ops/activation_function.h"

namespace lockstep {

struct GluDescription {
  using Op = class Glu;
  static constexpr std::string_view kName = "glu";

  std::int64_t rows = 0;
  std::int64_t width = 0;  // of gate, of up and of y
  ActivationFunction function = ActivationFunction::silu;
  DType dtype = DType::fp32;
};

inline void require_possible(const GluDescription& d) {
  require(d.rows > 0 && d.width > 0 && d.function != ActivationFunction::none, ErrorCode::op_description,
          "a gated linear unit of {} rows of {} elements by {}: a function, rows and elements are needed", d.rows,
          d.width, name(d.function));
}

struct GluCalls {
  struct Forward {
    const void* x = nullptr;  // (rows, 2 * width): gate, then up
    void* y = nullptr;        // (rows, width), overwritten
  };
  struct Backward {
    const void* x = nullptr;   // of forward
    const void* dy = nullptr;  // (rows, width)
    void* dx = nullptr;        // (rows, 2 * width), like x; may be x
    GradientMode dx_mode = GradientMode::overwrite;
  };
};

class Glu : public TwoWayOp<GluDescription, GluCalls> {};

}  // namespace lockstep
