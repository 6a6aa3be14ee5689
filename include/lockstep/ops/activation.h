// An activation function as an op of its own, elementwise:
//     y = f(x),  dx = f'(x) * dy
// with f as in activation_function.h, computed in fp32. A matmul can have its activation fused (matmul.h).
#pragma once

#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/op.h"
#include "lockstep/ops/activation_function.h"

namespace lockstep {

struct ActivationDescription {
  using Op = class ActivationOp;
  static constexpr std::string_view kName = "activation";

  std::int64_t n_elements = 0;
  ActivationFunction function = ActivationFunction::relu;
  DType dtype = DType::fp32;
};

inline void require_possible(const ActivationDescription& d) {
  require(d.n_elements > 0 && d.function != ActivationFunction::none, ErrorCode::op_description,
          "an activation of {} elements by {}: both a function and elements are needed", d.n_elements,
          name(d.function));
}

struct ActivationCalls {
  struct Forward {
    const void* x = nullptr;
    void* y = nullptr;  // overwritten; may be x where backward is not called
  };
  struct Backward {
    const void* x = nullptr;  // of forward
    const void* dy = nullptr;
    void* dx = nullptr;  // may be dy
    GradientMode dx_mode = GradientMode::overwrite;
  };
};

class ActivationOp : public TwoWayOp<ActivationDescription, ActivationCalls> {};

}  // namespace lockstep
