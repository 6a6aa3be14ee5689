// SwiGLU (Shazeer, "GLU Variants Improve Transformer", 2020, equation 6), the gated activation of a decoder's
// feed-forward layer, on the result of one matmul for gate and up together. A row of x is [gate | up]:
//     y = silu(gate) * up                                          silu(z) = z * sigmoid(z)
//     dgate = dy * up * silu'(gate),  dup = dy * silu(gate)        silu'(z) = sigmoid(z) * (1 + z * (1 - sigmoid(z)))
// Values are computed in fp32 and rounded once.
#pragma once

#include "lockstep/dtype.h"
#include "lockstep/op.h"

namespace lockstep {

struct SwiGluDescription {
  using Op = class SwiGlu;
  static constexpr std::string_view kName = "swiglu";

  std::int64_t rows = 0;
  std::int64_t width = 0;  // of gate, of up and of y
  DType dtype = DType::fp32;
};

struct SwiGluCalls {
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

class SwiGlu : public TwoWayOp<SwiGluDescription, SwiGluCalls> {};

}  // namespace lockstep
