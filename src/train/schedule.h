// The learning rate as a function of the step: constant, step, cosine or polynomial, after a linear warm-up. And all
// other values that change from step to step and that ops read on the device (StepScalars), which are made here only.
#pragma once

#include <cstdint>
#include <limits>

#include "lockstep/config.h"
#include "lockstep/ops/step_scalars.h"

namespace lockstep::train {

/// A pure function of the step, so that a resumed run has the same rates as a run that was never stopped. With s the
/// step from 0, W the warm-up and L the length in steps (schedule.steps, else epochs x steps per epoch), lr and final
/// as configured; with schedule.update = epoch, s, W and L are whole epochs instead:
///   warm-up, s < W:  lr * (s+1) / W; with schedule.warmup_start = a > 0, lr * (a + (1-a) * s / W), which is the
///                    LinearLR(start_factor=a, total_iters=W) of PyTorch
///   t = (s - W) / (L - W), from 0 to 1, and 1 beyond the end
///   constant:        lr
///   cosine:          final + (lr - final) * (1 + cos(pi t)) / 2     Loshchilov and Hutter, SGDR, 2017, eq. 5
///   polynomial:      final + (lr - final) * (1 - t)^power
///   step:            lr * gamma^floor(epoch / step_epochs), epochs counted from step 0, warm-up included, as in
///                    Goyal et al., "Accurate, large minibatch SGD", 2017, section 5.1; beyond the end its last value
class Schedule {
 public:
  /// `factor`: all learning rates are multiplied by it (learning_rate_factor).
  /// Throws Error (config_conflict) if the warm-up is longer than the schedule, or if they are not whole epochs where
  /// they must be.
  Schedule(const Config::Schedule& config, double learning_rate, std::int64_t steps_per_epoch, std::int64_t epochs,
           double factor = 1);
  double learning_rate(std::int64_t step) const;  // of step 0, 1, ...
  std::int64_t warmup_steps() const { return warmup_; }

 private:
  double unscaled(std::int64_t step) const;
  double during_warmup(std::int64_t update) const;

  Config::Schedule config_;
  double base_, factor_;
  std::int64_t steps_per_epoch_, length_, warmup_;  // in steps
  std::int64_t steps_per_update_;
};

/// Linear scaling (Goyal et al., section 2.1): the global batch over optimizer.learning_rate_batch; 1 if that is 0.
double learning_rate_factor(const Config::Optimizer& optimizer, std::int64_t global_batch);

/// Throws what Schedule's constructor throws for the schedule of this configuration, with the places of its keys. The
/// length of an epoch follows from the data set, so that parsing cannot check it.
void check_schedule(const Config& config, std::int64_t steps_per_epoch);

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
