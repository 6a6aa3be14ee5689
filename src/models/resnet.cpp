#include "models/resnet.h"

#include <array>

#include "layers/layers.h"
#include "lockstep/error.h"

namespace lockstep::models {

namespace {

using graph::ActivationId;
using graph::Graph;

struct Table {
  int depth;
  std::array<int, 4> blocks;  // of the four stages, which have 64, 128, 256 and 512 channels
  bool bottleneck;            // 1x1, 3x3, 1x1 with four times the channels; else 3x3, 3x3
};
constexpr std::array<Table, 3> kTables{{
    {18, {2, 2, 2, 2}, false},
    {34, {3, 4, 6, 3}, false},
    {50, {3, 4, 6, 3}, true},
}};

const Table& table_of(int depth) {
  for (const Table& t : kTables)
    if (t.depth == depth) return t;
  fail(ErrorCode::not_supported, "model.depth: 18, 34 and 50 are known, not {}", depth);
}

struct Block {
  std::string name;  // "layer2.0"
  std::int64_t width = 0, out_channels = 0;
  int stride = 1;
  bool bottleneck = false;
  bool zero_gamma = false;
};

/// One convolution and its norm; no ReLU yet.
ActivationId unit(Graph& graph, ActivationId x, const Block& block, int number,
                  const layers::ConvolutionOptions& options, double gamma = 1.0) {
  const ActivationId y = layers::convolution(graph, x, block.name + ".conv" + std::to_string(number), options);
  return layers::batch_norm(graph, y, block.name + ".bn" + std::to_string(number), gamma);
}

/// relu(F(x) + shortcut(x)). The shortcut's convolution comes last, so that conv1 is the first to read x and applies
/// what is pending in it.
ActivationId residual_block(Graph& graph, ActivationId x, const Block& block) {
  const std::int64_t in_channels = graph.activation(x).shape[3];
  const double last_gamma = block.zero_gamma ? 0.0 : 1.0;
  ActivationId y;
  if (block.bottleneck) {
    y = layers::relu(graph,
                     unit(graph, x, block, 1, {.out_channels = block.width, .window = 1, .stride = 1, .padding = 0}));
    y = layers::relu(graph, unit(graph, y, block, 2, {.out_channels = block.width, .stride = block.stride}));
    y = unit(graph, y, block, 3, {.out_channels = block.out_channels, .window = 1, .stride = 1, .padding = 0},
             last_gamma);
  } else {
    y = layers::relu(graph, unit(graph, x, block, 1, {.out_channels = block.width, .stride = block.stride}));
    y = unit(graph, y, block, 2, {.out_channels = block.out_channels}, last_gamma);
  }
  ActivationId shortcut = x;
  if (block.stride != 1 || in_channels != block.out_channels) {
    const ActivationId projected =
        layers::convolution(graph, x, block.name + ".downsample.0",
                            {.out_channels = block.out_channels, .window = 1, .stride = block.stride, .padding = 0});
    shortcut = layers::batch_norm(graph, projected, block.name + ".downsample.1");
  }
  return layers::relu(graph, layers::add(graph, y, shortcut));
}

}  // namespace

ActivationId resnet(Graph& graph, ActivationId images, const Config::Model& model) {
  const Table& table = table_of(model.depth);
  const bool imagenet = model.stem == "imagenet";
  ActivationId x = layers::convolution(
      graph, images, "conv1",
      imagenet ? layers::ConvolutionOptions{.out_channels = 64, .window = 7, .stride = 2, .padding = 3}
               : layers::ConvolutionOptions{.out_channels = 64});
  x = layers::relu(graph, layers::batch_norm(graph, x, "bn1"));
  if (imagenet) x = layers::max_pool(graph, x, "maxpool", 3, 2, 1);
  for (int stage = 0; stage < 4; ++stage) {
    const std::int64_t width = std::int64_t{64} << stage;
    for (int i = 0; i < table.blocks[static_cast<std::size_t>(stage)]; ++i)
      x = residual_block(graph, x,
                         {.name = "layer" + std::to_string(stage + 1) + "." + std::to_string(i),
                          .width = width,
                          .out_channels = table.bottleneck ? 4 * width : width,
                          .stride = stage > 0 && i == 0 ? 2 : 1,
                          .bottleneck = table.bottleneck,
                          .zero_gamma = model.zero_gamma});
  }
  x = layers::global_average_pool(graph, x, "avgpool");
  return layers::linear(graph, x, "fc", model.classes);
}

}  // namespace lockstep::models
