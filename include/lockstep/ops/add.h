// y = a + b, elementwise, in fp32 and rounded once: two branches of a graph that meet, such as a residual connection.
// The gradient of both inputs is dy. Planning throws op_description if there are no elements, and not_supported for
// types that the backend does not support.
#pragma once

#include "lockstep/dtype.h"
#include "lockstep/op.h"

namespace lockstep {

class Add;

struct AddDescription {
  using Op = Add;
  static constexpr std::string_view kName = "add";

  std::int64_t n_elements = 0;
  DType dtype = DType::fp32;
};

class Add : public Op {
 public:
  struct Forward {
    const void* a = nullptr;
    const void* b = nullptr;
    void* y = nullptr;  // overwritten; may be a or b
  };
  struct Backward {
    const void* dy = nullptr;
    void* da = nullptr;  // may be dy, where overwriting leaves nothing to do
    GradientMode da_mode = GradientMode::overwrite;
    void* db = nullptr;  // the same
    GradientMode db_mode = GradientMode::overwrite;
  };
  void forward(const Forward& args, const OpMemory& memory, Stream& stream) {
    submit("add.forward", &Add::run_forward, args, memory, stream);
  }
  void backward(const Backward& args, const OpMemory& memory, Stream& stream) {
    submit("add.backward", &Add::run_backward, args, memory, stream);
  }

 private:
  virtual void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) = 0;
  virtual void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) = 0;
};

}  // namespace lockstep
