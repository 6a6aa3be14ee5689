// The distribution Beta(alpha, alpha) as a table, from which mixup and cutmix draw their weights
// (lockstep/ops/mix_images.h).
#pragma once

#include <vector>

namespace lockstep::layers {

/// The quantiles at (i + 1/2) / kBetaQuantiles, ascending. 0 < alpha <= 10.
std::vector<float> beta_quantiles(double alpha);

}  // namespace lockstep::layers
