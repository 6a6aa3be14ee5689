#include "checkpoint/tensor_names.h"

#include <algorithm>
#include <string_view>

namespace lockstep::checkpoint {
namespace {

std::string_view prefix_of(StateGroup group) {
  switch (group) {
    case StateGroup::parameters:
      return "/parameters/";
    case StateGroup::optimizer:
      return "/optimizer/";
    case StateGroup::statistics:
      return "/statistics/";
    case StateGroup::averages:
      return "/averages/";
  }
  return "";
}

constexpr std::string_view kRunningMean = "running_mean", kRunningVariance = "running_var",
                           kCounter = "num_batches_tracked";

}  // namespace

std::string tensor_path(StateGroup group, std::string_view name) { return std::string(prefix_of(group)).append(name); }

bool is_in(StateGroup group, std::string_view path) { return path.starts_with(prefix_of(group)); }

bool is_of_model(std::string_view path) {
  return is_in(StateGroup::parameters, path) || is_in(StateGroup::statistics, path);
}

std::optional<StateGroup> group_of(std::string_view path) {
  for (const StateGroup group :
       {StateGroup::parameters, StateGroup::optimizer, StateGroup::statistics, StateGroup::averages})
    if (is_in(group, path)) return group;
  return std::nullopt;
}

std::string tensor_name(std::string_view path) {
  const auto group = group_of(path);
  return std::string(path.substr(group ? prefix_of(*group).size() : 0));
}

std::vector<NamedTensor> to_torchvision(LoadedFile file, std::int64_t step) {
  std::vector<NamedTensor> out;
  for (LoadedTensor& tensor : file.tensors) {
    if (!is_of_model(tensor.path)) continue;
    const std::string name = tensor_name(tensor.path);
    if (name.ends_with(kRunningMean)) {
      const std::string layer = name.substr(0, name.size() - kRunningMean.size());
      out.push_back({layer + std::string(kCounter), Shape{}, {static_cast<float>(step)}});
    }
    out.push_back({name, tensor.shape, std::move(tensor.values)});
  }
  return out;
}

LoadedFile from_torchvision(std::vector<NamedTensor> tensors) {
  LoadedFile out;
  for (NamedTensor& tensor : tensors) {
    if (tensor.name.ends_with(kCounter)) continue;
    const bool is_statistic = tensor.name.ends_with(kRunningMean) || tensor.name.ends_with(kRunningVariance);
    const StateGroup group = is_statistic ? StateGroup::statistics : StateGroup::parameters;
    out.tensors.push_back({tensor_path(group, tensor.name), tensor.shape, std::move(tensor.values)});
  }
  std::ranges::sort(out.tensors, {}, &LoadedTensor::path);
  return out;
}

}  // namespace lockstep::checkpoint
