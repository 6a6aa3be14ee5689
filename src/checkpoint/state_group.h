// The groups of tensors in a checkpoint, and how they appear in the path of a data set: "/parameters/conv1.weight" is
// the tensor "conv1.weight" of the group `parameters`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

}  // namespace lockstep::checkpoint
