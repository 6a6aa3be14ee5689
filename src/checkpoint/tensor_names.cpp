#include "checkpoint/tensor_names.h"

#include <algorithm>
#include <string_view>

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kPrefixes[] = {"/parameters/", "/optimizer/", "/statistics/",
                                          "/averages/"};  // of each group

std::string_view prefix_of(StateGroup group) { return kPrefixes[static_cast<std::size_t>(group)]; }

constexpr std::string_view kRunningMean = "running_mean", kRunningVariance = "running_var",
                           kCounter = "num_batches_tracked";

}  // namespace

std::string tensor_path(StateGroup group, std::string_view name) { return std::string(prefix_of(group)).append(name); }

bool is_in(StateGroup group, std::string_view path) { return path.starts_with(prefix_of(group)); }

bool is_of_model(std::string_view path) {
  return is_in(StateGroup::parameters, path) || is_in(StateGroup::statistics, path);
}

std::optional<StateGroup> group_of(std::string_view path) {
  const auto found = std::ranges::find_if(kPrefixes, [&](std::string_view p) { return path.starts_with(p); });
  if (found == std::end(kPrefixes)) return std::nullopt;
  return static_cast<StateGroup>(found - std::begin(kPrefixes));
}

std::string tensor_name(std::string_view path) {
  const auto group = group_of(path);
  return std::string(path.substr(group ? prefix_of(*group).size() : 0));
}

std::vector<NamedTensor> to_torchvision(std::vector<NamedTensor> tensors, std::int64_t step) {
  std::vector<NamedTensor> out;
  for (NamedTensor& tensor : tensors) {
    if (!is_of_model(tensor.name)) continue;
    const std::string name = tensor_name(tensor.name);
    if (name.ends_with(kRunningMean)) {
      const std::string layer = name.substr(0, name.size() - kRunningMean.size());
      out.emplace_back(layer + std::string(kCounter), Shape{}, std::vector{static_cast<float>(step)});
    }
    out.push_back(std::move(tensor));
    out.back().name = name;
  }
  return out;
}

std::vector<NamedTensor> from_torchvision(std::vector<NamedTensor> tensors) {
  std::erase_if(tensors, [](const NamedTensor& tensor) { return tensor.name.ends_with(kCounter); });
  for (NamedTensor& tensor : tensors) {
    const bool is_statistic = tensor.name.ends_with(kRunningMean) || tensor.name.ends_with(kRunningVariance);
    const StateGroup group = is_statistic ? StateGroup::statistics : StateGroup::parameters;
    tensor.name = tensor_path(group, tensor.name);
  }
  std::ranges::sort(tensors, {}, &NamedTensor::name);
  return tensors;
}

}  // namespace lockstep::checkpoint
