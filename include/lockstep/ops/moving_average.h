// Moving averages, elementwise, once per step:
//     running += momentum * (batch - running)
// A fixed momentum is for batch statistics; a skipped step then changes nothing. StepScalars::average_momentum is for
// weights (the exponential moving average of Polyak and Juditsky, "Acceleration of Stochastic Approximation by
// Averaging", 1992, in the form of torchvision's references). Weights exist whether a step was applied or not, so
// skipped steps count too. A momentum of 0 leaves the average as it is, whatever `batch` contains, and 1 copies `batch`
// exactly.
#pragma once

#include <cstddef>
#include <optional>

#include "lockstep/op.h"
#include "lockstep/ops/step_scalars.h"

namespace lockstep {

struct MovingAverageDescription {
  using Op = class MovingAverage;
  static constexpr std::string_view kName = "moving_average";

  std::size_t n_elements = 0;
  std::optional<float> momentum = 0.1f;  // no value: StepScalars::average_momentum
};

struct MovingAverageCalls {
  struct Apply {
    float* running = nullptr;
    const float* batch = nullptr;
    const StepScalars* scalars = nullptr;  // is_applied or average_momentum
  };
};

class MovingAverage : public ApplyOp<MovingAverageDescription, MovingAverageCalls> {};

}  // namespace lockstep
