// ResNet-18, 34, 50, 101 and 152, from a table (resnet_table.h). Source: He et al., "Deep residual learning for image
// recognition", 2015; parameter names, initial values and the stride in the 3x3 of a bottleneck ("v1.5") as
// torchvision.models.resnet.
#include "models/family.h"

#include "layers/layers.h"
#include "models/resnet_table.h"

namespace lockstep::models {

namespace {

using graph::ActivationId;
using graph::Graph;

struct Block {
  std::string name;  // "layer2.0"
  std::int64_t width = 0, out_channels = 0;
  int stride = 1;
  bool bottleneck = false;
  layers::BatchNormOptions batch_norm{}, last_batch_norm{};  // initial scale of the last norm of a block
};

/// One convolution and its norm; no ReLU yet.
ActivationId unit(Graph& graph, ActivationId x, const Block& block, int number,
                  const layers::ConvolutionOptions& options, const layers::BatchNormOptions& batch_norm) {
  const ActivationId y = layers::convolution(graph, x, block.name + ".conv" + std::to_string(number), options);
  return layers::batch_norm(graph, y, block.name + ".bn" + std::to_string(number), batch_norm);
}

/// relu(F(x) + shortcut(x)). The shortcut's convolution comes last, so that conv1 is the first to read x and applies
/// the normalisation that is pending in it.
ActivationId residual_block(Graph& graph, ActivationId x, const Block& block) {
  const std::int64_t in_channels = graph.activation(x).shape[3];
  const auto inner = [&](ActivationId in, int number, const layers::ConvolutionOptions& options) {
    return layers::relu(graph, unit(graph, in, block, number, options, block.batch_norm));
  };
  const auto last = [&](ActivationId in, int number, const layers::ConvolutionOptions& options) {
    return unit(graph, in, block, number, options, block.last_batch_norm);
  };
  ActivationId y;
  if (block.bottleneck) {
    y = inner(x, 1, {.out_channels = block.width, .kernel_size = 1, .stride = 1, .padding = 0});
    y = inner(y, 2, {.out_channels = block.width, .stride = block.stride});
    y = last(y, 3, {.out_channels = block.out_channels, .kernel_size = 1, .stride = 1, .padding = 0});
  } else {
    y = inner(x, 1, {.out_channels = block.width, .stride = block.stride});
    y = last(y, 2, {.out_channels = block.out_channels});
  }
  ActivationId shortcut = x;
  if (block.stride != 1 || in_channels != block.out_channels) {
    const ActivationId projected = layers::convolution(
        graph, x, block.name + ".downsample.0",
        {.out_channels = block.out_channels, .kernel_size = 1, .stride = block.stride, .padding = 0});
    shortcut = layers::batch_norm(graph, projected, block.name + ".downsample.1", block.batch_norm);
  }
  return layers::relu(graph, layers::add(graph, y, shortcut));
}

}  // namespace

ActivationId resnet(Graph& graph, ActivationId images, const Config::Model& model,
                    const layers::BatchNormOptions& batch_norm) {
  layers::BatchNormOptions last_batch_norm = batch_norm;
  last_batch_norm.gamma = model.zero_gamma ? 0.0 : 1.0;
  const ResnetDepth& table = resnet_depth(model.depth);
  const bool imagenet = model.stem == "imagenet";
  ActivationId x = layers::convolution(
      graph, images, "conv1",
      imagenet ? layers::ConvolutionOptions{.out_channels = model.width, .kernel_size = 7, .stride = 2, .padding = 3}
               : layers::ConvolutionOptions{.out_channels = model.width});
  x = layers::relu(graph, layers::batch_norm(graph, x, "bn1", batch_norm));
  if (imagenet) x = layers::max_pool(graph, x, "maxpool", 3, 2, 1);
  for (int stage = 0; stage < 4; ++stage) {
    const std::int64_t width = std::int64_t{model.width} << stage;
    for (int i = 0; i < table.blocks[static_cast<std::size_t>(stage)]; ++i)
      x = residual_block(graph, x,
                         {.name = "layer" + std::to_string(stage + 1) + "." + std::to_string(i),
                          .width = width,
                          .out_channels = table.bottleneck ? 4 * width : width,
                          .stride = stage > 0 && i == 0 ? 2 : 1,
                          .bottleneck = table.bottleneck,
                          .batch_norm = batch_norm,
                          .last_batch_norm = last_batch_norm});
  }
  x = layers::global_average_pool(graph, x, "avgpool");
  return layers::linear(graph, x, "fc", {.out_features = model.classes});
}

}  // namespace lockstep::models
