// The scalars of a step: all values that change from step to step and that ops read on the device. This is
// the only place where they are made.
#pragma once

#include <cstdint>
#include <limits>

#include "lockstep/config.h"
#include "lockstep/ops/step_scalars.h"

namespace lockstep::train {

struct StepInputs {
  std::int64_t step = 0;             // from 0
  std::int64_t optimizer_begin = 0;  // the step at which the state of the optimizer was zero
  std::int64_t epoch = 0;
  double nominal_count = 0;  // of samples or tokens of all ranks, if each has a label (tasks::Task::nominal_count)
  double learning_rate = 0;
  float loss_limit = std::numeric_limits<float>::infinity();  // a mean loss above it is a spike
  float average_momentum = 0;                                 // average_momentum()
};

StepScalars make_step_scalars(const StepInputs& inputs, const Config::Optimizer& optimizer);

/// The momentum with which the weights after `step` (from 0) enter their moving average: 1 - ema.decay after the steps
/// that ema.every_steps and ema.intervals select, and 0 after the others. As in torchvision's references, it is 1
/// during the warm-up of `warmup_steps` and for the first average after it: the average then is a copy of the weights.
float average_momentum(const Config::Ema& ema, std::int64_t step, std::int64_t warmup_steps,
                       std::int64_t steps_per_epoch);

}  // namespace lockstep::train
