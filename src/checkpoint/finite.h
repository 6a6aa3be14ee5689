// Weights that are not finite: a training that diverged may leave them behind, and no result of such a model has a
// meaning.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace lockstep::checkpoint {

bool is_finite(std::span<const float> values);

/// Throws checkpoint_damaged, with the name of the tensor, if a value is infinite or NaN.
void require_finite(const std::string& file, const std::string& tensor, std::span<const float> values);
/// The same for each of them.
void require_finite(const std::string& file, const std::vector<NamedTensor>& tensors);

}  // namespace lockstep::checkpoint
