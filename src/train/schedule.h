// The learning rate as a function of the step: constant, step, cosine or polynomial, after a linear warm-up.
#pragma once

#include <cstdint>

#include "lockstep/config.h"

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

}  // namespace lockstep::train
