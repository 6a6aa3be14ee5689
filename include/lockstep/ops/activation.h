// An activation function as an op of its own, elementwise:
//     y = f(x),  dx = f'(x) * dy
// with f as in activation_function.h, computed in fp32. A matmul can have its activation fused (matmul.h).
// Planning throws op_description if there are no elements or no function, and not_supported for types that the backend
// does not support.
#pragma once

#include "lockstep/dtype.h"
#include "lockstep/op.h"
#include "lockstep/ops/activation_function.h"

namespace lockstep {

class Activation;

struct ActivationDescription {
  using Op = Activation;
  static constexpr std::string_view kName = "activation";

  std::int64_t n_elements = 0;
  ActivationFunction function = ActivationFunction::relu;
  DType dtype = DType::fp32;
};

class Activation : public Op {
 public:
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
  void forward(const Forward& args, const OpMemory& memory, Stream& stream) {
    submit("activation.forward", &Activation::run_forward, args, memory, stream);
  }
  void backward(const Backward& args, const OpMemory& memory, Stream& stream) {
    submit("activation.backward", &Activation::run_backward, args, memory, stream);
  }

 private:
  virtual void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) = 0;
  virtual void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) = 0;
};

}  // namespace lockstep
