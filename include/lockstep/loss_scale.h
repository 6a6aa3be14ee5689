// Loss scaling (Micikevicius et al., "Mixed Precision Training", 2018, section 3.2): the loss, and with it every
// gradient, is multiplied by a scale, so that small gradients do not underflow to zero in fp16. The gradients are
// divided by the scale before the update. The scale adapts to the gradients, as in torch.amp.GradScaler. If it is a
// power of two, it changes no bits of values that neither overflow nor underflow.
#pragma once

#include <cstdint>

namespace lockstep {

/// Kept from step to step, in the backend's memory and in checkpoints.
struct LossScale {
  float scale = 1;
  std::uint32_t good_steps = 0;  // since the scale changed or a gradient overflowed
};

struct LossScaling {
  std::uint32_t growth_steps = 2000;  // the scale grows after this many consecutive steps without overflow; 0: constant
  float growth_factor = 2;
  float backoff_factor = 0.5f;  // the scale is multiplied by this when a gradient is infinite or NaN
  float min_scale = 1;
  float max_scale = 0x1p24f;
};

/// The state after a step. `is_finite`: whether the gradients of that step were finite.
constexpr LossScale next_loss_scale(const LossScale& now, const LossScaling& scaling, bool is_finite) {
  if (scaling.growth_steps == 0) return now;
  if (!is_finite) {
    const float less = now.scale * scaling.backoff_factor;
    return {less < scaling.min_scale ? scaling.min_scale : less, 0};
  }
  if (now.good_steps + 1 < scaling.growth_steps) return {now.scale, now.good_steps + 1};
  const float more = now.scale * scaling.growth_factor;
  return {more > scaling.max_scale ? scaling.max_scale : more, 0};
}

}  // namespace lockstep
