// The groups of tensors in a checkpoint, and how they appear in the path of a data set: "/parameters/conv1.weight" is
// the tensor "conv1.weight" of the group `parameters`. Exported
// models have the names of torchvision.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"

namespace lockstep::checkpoint {

/// parameters: fp32 masters. optimizer: its states, "momentum/conv1.weight". statistics: running means and variances.
/// averages: the moving averages of parameters and statistics that are trained, under the same names.
enum class StateGroup : std::uint8_t { parameters, optimizer, statistics, averages };

/// "/parameters/conv1.weight"
std::string tensor_path(StateGroup group, std::string_view name);
/// No value if the path is in none of the groups.
std::optional<StateGroup> group_of(std::string_view path);
bool is_in(StateGroup group, std::string_view path);
/// Parameters and statistics: what a model consists of.
bool is_of_model(std::string_view path);
/// "conv1.weight": the path without its group.
std::string tensor_name(std::string_view path);

// ---- torchvision's names --------------------------------------------------------------------------------------------
//
// "/parameters/conv1.weight" is "conv1.weight", and "/statistics/bn1.running_mean" is "bn1.running_mean". The state of
// the optimizer has no counterpart.

/// Parameters and running statistics, and for each running mean a tensor "num_batches_tracked" = step.
std::vector<NamedTensor> to_torchvision(std::vector<NamedTensor> tensors, std::int64_t step);
/// The inverse: names ending in running_mean and running_var become statistics; num_batches_tracked is left out.
std::vector<NamedTensor> from_torchvision(std::vector<NamedTensor> tensors);

}  // namespace lockstep::checkpoint
