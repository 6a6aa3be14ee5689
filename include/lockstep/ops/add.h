// y = a + b, elementwise, in fp32 and rounded once: two branches of a graph that meet, such as a residual connection.
// The gradient of both inputs is dy.
#pragma once

#include "lockstep/dtype.h"
#include "lockstep/op.h"

namespace lockstep {

struct AddDescription {
  using Op = class Add;
  static constexpr std::string_view kName = "add";

  std::int64_t n_elements = 0;
  DType dtype = DType::fp32;
};

struct AddCalls {
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
};

class Add : public TwoWayOp<AddDescription, AddCalls> {};

}  // namespace lockstep
