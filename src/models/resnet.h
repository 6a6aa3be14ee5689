// ResNet-18, 34, 50, 101 and 152, from a table (resnet_table.h). Source: He et al., "Deep residual learning for image
// recognition", 2015; parameter names, initial values and the stride in the 3x3 of a bottleneck ("v1.5") as
// torchvision.models.resnet.
#pragma once

#include "graph/graph.h"
#include "layers/layers.h"
#include "lockstep/config.h"

namespace lockstep::models {

/// images (N, H, W, 3), normalised -> logits (N, 1, 1, classes).
/// stem imagenet: 7x7 stride 2 and max pooling; cifar: 3x3 stride 1.
graph::ActivationId resnet(graph::Graph& graph, graph::ActivationId images, const Config::Model& model,
                           const layers::BatchNormOptions& batch_norm);

}  // namespace lockstep::models
