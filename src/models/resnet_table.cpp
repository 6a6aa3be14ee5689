#include "models/resnet_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::models {

namespace {

constexpr std::array<ResnetDepth, 5> kDepths{{
    {18, {2, 2, 2, 2}, false},
    {34, {3, 4, 6, 3}, false},
    {50, {3, 4, 6, 3}, true},
    {101, {3, 4, 23, 3}, true},
    {152, {3, 8, 36, 3}, true},
}};

/// "18, 34, 50, 101, 152"
std::string known_depths() {
  std::vector<int> depths;
  for (const ResnetDepth& d : kDepths) depths.push_back(d.depth);
  return fmt::format("{}", fmt::join(depths, ", "));
}

}  // namespace

const ResnetDepth& resnet_depth(int depth) {
  const auto found = std::ranges::find(kDepths, depth, &ResnetDepth::depth);
  require(found != kDepths.end(), ErrorCode::not_supported, "model.depth: {} is not supported; supported are {}", depth,
          known_depths());
  return *found;
}

Config::Model infer_resnet(const TensorShapes& tensors, const std::string& source) {
  const auto shape_of = [&](const std::string& name, int rank) {
    const auto found = tensors.find(name);
    require(found != tensors.end() && found->second.rank() == rank, ErrorCode::checkpoint_mismatch,
            "{} is not a ResNet with torchvision's names: {} is {}", source, name,
            found == tensors.end() ? "missing" : "of shape " + found->second.text());
    return found->second;
  };

  const Shape first = shape_of("conv1.weight", 4);
  const std::int64_t width = first[0], kernel_size = first[2];
  require(
      kernel_size == 3 || kernel_size == 7, ErrorCode::checkpoint_mismatch,
      "{} is not a ResNet that Lockstep supports: the kernel size of conv1 is {}; supported are 3 (stem cifar) and 7 "
      "(imagenet)",
      source, kernel_size);

  std::array<int, 4> blocks{};
  for (std::size_t stage = 0; stage < blocks.size(); ++stage)
    while (tensors.contains(fmt::format("layer{}.{}.conv1.weight", stage + 1, blocks[stage]))) ++blocks[stage];
  const bool bottleneck = tensors.contains("layer1.0.conv3.weight");
  const auto known = std::ranges::find_if(
      kDepths, [&](const ResnetDepth& d) { return d.blocks == blocks && d.bottleneck == bottleneck; });
  require(known != kDepths.end(), ErrorCode::checkpoint_mismatch,
          "{} is not a ResNet that Lockstep supports: its stages have {} {} blocks; supported are {} layers", source,
          fmt::join(blocks, ", "), bottleneck ? "bottleneck" : "basic", known_depths());
  // Wide and grouped ResNets have the same names of tensors, but other shapes.
  const Shape second = shape_of("layer1.0.conv2.weight", 4);
  require(second == Shape({width, width, 3, 3}), ErrorCode::checkpoint_mismatch,
          "{} is not a ResNet that Lockstep supports: layer1.0.conv2.weight has the shape {}; expected ({}, {}, 3, 3)",
          source, second.text(), width, width);

  Config::Model model;
  model.family = "resnet";
  model.depth = known->depth;
  model.stem = kernel_size == 7 ? "imagenet" : "cifar";
  model.width = static_cast<int>(width);
  model.classes = static_cast<int>(shape_of("fc.weight", 2)[0]);
  return model;
}

}  // namespace lockstep::models
