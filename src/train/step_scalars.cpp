#include "train/step_scalars.h"

#include <cmath>

namespace lockstep::train {

StepScalars make_step_scalars(const StepInputs& inputs, const Config::Optimizer& optimizer) {
  const double t = static_cast<double>(inputs.step - inputs.optimizer_begin + 1);
  const auto correction = [t](double beta) { return static_cast<float>(1.0 / (1.0 - std::pow(beta, t))); };
  return {.learning_rate = static_cast<float>(inputs.learning_rate),
          .nominal_count = inputs.nominal_count,
          .loss_weight = static_cast<float>(1.0 / inputs.nominal_count),
          .loss_limit = inputs.loss_limit,
          .adam_correction1 = correction(optimizer.beta1),
          .adam_correction2 = correction(optimizer.beta2),
          .average_momentum = inputs.average_momentum,
          .epoch = static_cast<std::uint32_t>(inputs.epoch),
          .step = static_cast<std::uint32_t>(inputs.step)};
}

float average_momentum(const Config::Ema& ema, std::int64_t step, std::int64_t warmup_steps,
                       std::int64_t steps_per_epoch) {
  const bool restarts = ema.intervals == "epoch";
  const std::int64_t of_epoch = step % steps_per_epoch;
  if (!ema.is_on() || (restarts ? of_epoch : step + 1) % ema.every_steps != 0) return 0;
  // The intervals restart in each epoch: the last one of an epoch may be shorter than the others.
  const std::int64_t interval =
      restarts && of_epoch == 0 ? 1 + (steps_per_epoch - 1) % ema.every_steps : ema.every_steps;
  const std::int64_t previous = step - interval;  // negative: there was no previous update
  return previous < warmup_steps ? 1.0f : static_cast<float>(1 - ema.decay);
}

}  // namespace lockstep::train
