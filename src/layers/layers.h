// The layers that models are made of. Each function adds a node to the graph and returns the activation it gives;
// parameters are named as in torchvision and initialised as its resnet does. No backend is named here.
// To add a layer: a file beside these with its Node, a line here.
#pragma once

#include <string>

#include "graph/graph.h"

namespace lockstep::layers {

using graph::ActivationId;
using graph::Graph;

/// uint8 images (N, H, W, C) to normalised (N, H, W, C), cropped and flipped. The buffers that a step's data goes to.
struct ImageBuffers {
  graph::TensorId images = graph::kNoTensor;      // (N, H, W, C) uint8
  graph::TensorId labels = graph::kNoTensor;      // (N) int32
  graph::TensorId sample_ids = graph::kNoTensor;  // (N) uint32
};
struct ImageInputOptions {
  int height = 0, width = 0, channels = 0;  // pixels
  std::vector<float> mean, stddev;
  int crop_padding = 0;
  bool flip = false;
  std::uint32_t seed = 0;
};
ActivationId image_input(Graph& graph, const ImageInputOptions& options, ImageBuffers& buffers);

struct ConvolutionOptions {
  std::int64_t out_channels = 0;
  int window = 3, stride = 1, padding = 1;
};
/// No bias: a batch norm follows. Weights: normal, variance 2 / (K * R * S) (He et al. 2015, fan out).
ActivationId convolution(Graph& graph, ActivationId x, const std::string& name, const ConvolutionOptions& options);

/// Returns a pending activation: normalised, not yet applied. `gamma`: initial scale, 1 or 0.
ActivationId batch_norm(Graph& graph, ActivationId x, const std::string& name, double gamma = 1.0);
/// ReLU of a pending activation: becomes part of it.
ActivationId relu(Graph& graph, ActivationId x);
/// a + b, `a` pending without ReLU; becomes part of it. `b` is another one, or anything applied before.
ActivationId add(Graph& graph, ActivationId a, ActivationId b);

ActivationId max_pool(Graph& graph, ActivationId x, const std::string& name, int window, int stride, int padding);
ActivationId global_average_pool(Graph& graph, ActivationId x, const std::string& name);

/// y = x W^T + b; weights and bias uniform in +-1/sqrt(in) (torch.nn.Linear).
ActivationId linear(Graph& graph, ActivationId x, const std::string& name, std::int64_t out_features);

/// The loss of (N, classes) logits; its LossSums over samples lie `sums_offset` bytes into exchange memory.
void cross_entropy(Graph& graph, ActivationId logits, const ImageBuffers& buffers, float label_smoothing,
                   std::size_t sums_offset);

}  // namespace lockstep::layers
