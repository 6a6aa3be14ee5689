// Converts between the paths in a checkpoint and torchvision's names: "/parameters/conv1.weight" is "conv1.weight", and
// "/statistics/bn1.running_mean" is "bn1.running_mean". The state of the optimizer has no counterpart.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"

namespace lockstep::checkpoint {

/// Parameters and running statistics, and for each running mean a tensor "num_batches_tracked" = step.
std::vector<NamedTensor> to_torchvision(LoadedFile file, std::int64_t step);
/// The inverse: names ending in running_mean and running_var become statistics; num_batches_tracked is left out.
LoadedFile from_torchvision(std::vector<NamedTensor> tensors);

}  // namespace lockstep::checkpoint
