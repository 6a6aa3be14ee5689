#include "checkpoint/torchvision.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kRunningMean = "running_mean", kRunningVariance = "running_var",
                           kCounter = "num_batches_tracked";

struct Depth {
  int depth;
  std::array<int, 4> blocks;
  bool bottleneck;
};
// He et al., "Deep Residual Learning for Image Recognition", 2015, table 1.
constexpr std::array<Depth, 3> kDepths{
    {{18, {2, 2, 2, 2}, false}, {34, {3, 4, 6, 3}, false}, {50, {3, 4, 6, 3}, true}}};

const NamedTensor* find(const std::vector<NamedTensor>& tensors, const std::string& name) {
  const auto at = std::ranges::find(tensors, name, &NamedTensor::name);
  return at == tensors.end() ? nullptr : &*at;
}

}  // namespace

std::vector<NamedTensor> to_torchvision(LoadedFile file, std::int64_t step) {
  std::vector<NamedTensor> out;
  for (LoadedTensor& tensor : file.tensors) {
    const bool parameter = tensor.path.starts_with(kParameters);
    if (!parameter && !tensor.path.starts_with(kStatistics)) continue;
    const std::string name = tensor.path.substr(std::string_view(parameter ? kParameters : kStatistics).size());
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
    const bool statistic = tensor.name.ends_with(kRunningMean) || tensor.name.ends_with(kRunningVariance);
    out.tensors.push_back(
        {(statistic ? kStatistics : kParameters) + tensor.name, tensor.shape, std::move(tensor.values)});
  }
  std::ranges::sort(out.tensors, {}, &LoadedTensor::path);
  return out;
}

nlohmann::json infer_model(const std::vector<NamedTensor>& tensors, const std::string& source) {
  const auto wanted = [&](const std::string& name, int rank) -> const NamedTensor& {
    const NamedTensor* tensor = find(tensors, name);
    require(tensor != nullptr && tensor->shape.rank() == rank, ErrorCode::checkpoint_mismatch,
            "{} is not a ResNet with torchvision's names: {} is {}", source, name,
            tensor == nullptr ? "missing" : "of shape " + tensor->shape.text());
    return *tensor;
  };

  const std::int64_t window = wanted("conv1.weight", 4).shape[2];
  require(window == 3 || window == 7, ErrorCode::checkpoint_mismatch,
          "{} is not a ResNet that Lockstep has: the window of conv1 is {}; 3 (stem cifar) and 7 (imagenet) are known",
          source, window);

  std::array<int, 4> blocks{};
  for (std::size_t stage = 0; stage < blocks.size(); ++stage)
    while (find(tensors, fmt::format("layer{}.{}.conv1.weight", stage + 1, blocks[stage])) != nullptr) ++blocks[stage];
  const bool bottleneck = find(tensors, "layer1.0.conv3.weight") != nullptr;
  const auto depth =
      std::ranges::find_if(kDepths, [&](const Depth& d) { return d.blocks == blocks && d.bottleneck == bottleneck; });
  require(depth != kDepths.end(), ErrorCode::checkpoint_mismatch,
          "{} is not a ResNet that Lockstep has: its stages have {}, {}, {} and {} {} blocks; 18, 34 and 50 layers are "
          "known",
          source, blocks[0], blocks[1], blocks[2], blocks[3], bottleneck ? "bottleneck" : "basic");
  // Wide and grouped ResNets have the same names.
  const Shape& second = wanted("layer1.0.conv2.weight", 4).shape;
  require(second == Shape({64, 64, 3, 3}), ErrorCode::checkpoint_mismatch,
          "{} is not a ResNet that Lockstep has: layer1.0.conv2.weight has the shape {}, (64, 64, 3, 3) was expected",
          source, second.text());

  return {{"family", "resnet"},
          {"depth", depth->depth},
          {"stem", window == 7 ? "imagenet" : "cifar"},
          {"classes", wanted("fc.weight", 2).shape[0]}};
}

}  // namespace lockstep::checkpoint
