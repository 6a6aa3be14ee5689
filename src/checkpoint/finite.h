// Values that no usable model has: a training that diverged may leave infinities and NaN behind, and a damaged or
// foreign file may have a negative variance, whose square root is NaN. The results of such a model are meaningless.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace lockstep::checkpoint {

bool is_finite(std::span<const float> values);

/// Throws checkpoint_damaged, with the name of the tensor, if a value is infinite or NaN, or if a value of a tensor
/// `*.running_var` is negative.
void require_usable(const std::string& file, const std::string& tensor, std::span<const float> values);
/// The same for each of them.
void require_usable(const std::string& file, const std::vector<NamedTensor>& tensors);

}  // namespace lockstep::checkpoint
