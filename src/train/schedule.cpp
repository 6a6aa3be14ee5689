#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/error.h"

namespace lockstep::train {

Schedule::Schedule(const Config::Schedule& config, double learning_rate, std::int64_t steps_per_epoch,
                   std::int64_t epochs, double factor)
    : config_(config),
      base_(learning_rate),
      factor_(factor),
      steps_per_epoch_(steps_per_epoch),
      length_(config.steps > 0 ? config.steps : epochs * steps_per_epoch),
      warmup_(config.warmup_steps > 0 ? config.warmup_steps
                                      : std::llround(config.warmup_epochs * static_cast<double>(steps_per_epoch))),
      steps_per_update_(config.update == "epoch" ? steps_per_epoch : 1) {
  require(steps_per_epoch > 0 && length_ > 0, ErrorCode::internal,
          "a schedule needs at least one step, but there are {} steps per epoch and its length is {}", steps_per_epoch,
          length_);
  require(warmup_ <= length_, ErrorCode::config_conflict,
          "the warm-up must not be longer than the schedule, found {} steps of {}; lower schedule.warmup_epochs or "
          "schedule.warmup_steps, or raise schedule.steps",
          warmup_, length_);
  require(warmup_ % steps_per_update_ == 0 && length_ % steps_per_update_ == 0, ErrorCode::config_conflict,
          "with schedule.update=epoch, the warm-up and the schedule must be whole epochs of {} steps, found {} and {} "
          "steps; change schedule.warmup_epochs, schedule.warmup_steps or schedule.steps",
          steps_per_epoch, warmup_, length_);
}

double Schedule::learning_rate(std::int64_t step) const { return factor_ * unscaled(step); }

double Schedule::during_warmup(std::int64_t update) const {
  const auto n_updates = static_cast<double>(warmup_ / steps_per_update_);
  const double start = config_.warmup_start;
  if (start > 0) return base_ * (start + (1 - start) * static_cast<double>(update) / n_updates);
  return base_ * static_cast<double>(update + 1) / n_updates;
}

double Schedule::unscaled(std::int64_t step) const {
  const std::int64_t update = step / steps_per_update_;
  if (step < warmup_) return during_warmup(update);
  if (config_.kind == "step") {
    const std::int64_t epoch = std::min(step, length_ - 1) / steps_per_epoch_;
    const std::int64_t n_drops = epoch / config_.step_epochs;
    return base_ * std::pow(config_.gamma, static_cast<double>(n_drops));
  }
  const double range = static_cast<double>(length_ - warmup_);
  const std::int64_t last_change = update * steps_per_update_;
  const double t = range > 0 ? std::min(1.0, static_cast<double>(last_change - warmup_) / range) : 1.0;
  const double final = config_.final_learning_rate;
  if (config_.kind == "cosine") return final + (base_ - final) * 0.5 * (1.0 + std::cos(std::numbers::pi * t));
  if (config_.kind == "polynomial") return final + (base_ - final) * std::pow(1.0 - t, config_.power);
  return base_;  // the constant schedule
}

double learning_rate_factor(const Config::Optimizer& optimizer, std::int64_t global_batch) {
  if (optimizer.learning_rate_batch == 0) return 1;
  return static_cast<double>(global_batch) / static_cast<double>(optimizer.learning_rate_batch);
}

void check_schedule(const Config& config, std::int64_t steps_per_epoch) {
  try {
    Schedule(config.schedule, config.optimizer.learning_rate, steps_per_epoch, config.train.epochs);
  } catch (const Error& error) {
    fail(error.code(), "{}{}",
         config.places(
             {"schedule.warmup_epochs", "schedule.warmup_steps", "schedule.steps", "schedule.update", "train.epochs"}),
         error.what());
  }
}

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
