// running += momentum * (batch - running), elementwise: running statistics, updated once per step that is applied.
#pragma once

#include <cstddef>

#include "lockstep/op.h"
#include "lockstep/ops/step_scalars.h"

namespace lockstep {

class MovingAverage;

struct MovingAverageDescription {
  using Op = MovingAverage;
  static constexpr std::string_view kName = "moving_average";

  std::size_t n_elements = 0;
  float momentum = 0.1f;
};

class MovingAverage : public Op {
 public:
  struct Apply {
    float* running = nullptr;
    const float* batch = nullptr;
    const StepScalars* scalars = nullptr;  // is_applied
  };
  void apply(const Apply& args, const OpMemory& memory, Stream& stream) {
    submit("moving_average.apply", &MovingAverage::run_apply, args, memory, stream);
  }

 private:
  virtual void run_apply(const Apply& args, const OpMemory& memory, Stream& stream) = 0;
};

}  // namespace lockstep
