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
          .epoch = static_cast<std::uint32_t>(inputs.epoch),
          .step = static_cast<std::uint32_t>(inputs.step)};
}

}  // namespace lockstep::train
