#include "checkpoint/torchvision.h"

#include <algorithm>
#include <string_view>

#include "checkpoint/state_group.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kRunningMean = "running_mean", kRunningVariance = "running_var",
                           kCounter = "num_batches_tracked";

}  // namespace

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
