// Learning rate as a function of the step: constant, step, cosine, polynomial, with linear warm-up by epochs or steps.
#pragma once

#include <cstdint>

#include "lockstep/config.h"

namespace lockstep::train {

/// steps: the schedule's length (schedule.steps, else epochs x steps an epoch). Warm-up: lr * (step+1) / warmup_steps.
/// After warm-up the rest of the length is the curve's domain; beyond the end its last value.
/// Sources: cosine: Loshchilov and Hutter, SGDR, 2017, eq. 5; polynomial: lr * (1-t)^power.
class Schedule {
 public:
  Schedule(const Config::Schedule& config, double learning_rate, std::int64_t steps_per_epoch, std::int64_t epochs);
  double learning_rate(std::int64_t step) const;  // of step 0, 1, ...
  std::int64_t length() const { return length_; }

 private:
  Config::Schedule config_;
  double base_;
  std::int64_t steps_per_epoch_, length_, warmup_;
};

}  // namespace lockstep::train
