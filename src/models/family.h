// The table of model families (model.family). To add one, add a file beside resnet.cpp or llama.cpp, a row here, and
// its name to the choices of model.family in config/table.cpp.
#pragma once

#include <string_view>

#include "graph/graph.h"
#include "layers/layers.h"
#include "lockstep/config.h"

namespace lockstep::models {

struct Family {
  std::string_view name;
  bool is_language_model = false;  // it is described by a config.json; otherwise, it classifies images
  /// Of a family that classifies images: images, normalised -> logits.
  graph::ActivationId (*build)(graph::Graph& graph, graph::ActivationId images, const Config::Model& model,
                               const layers::BatchNormOptions& batch_norm) = nullptr;
};

/// Throws not_supported.
const Family& family_of(std::string_view name);
/// False for a name that is not known: a file may have none.
bool is_language_model(std::string_view family);

/// ResNet-18 to 152: images (N, H, W, 3), normalised -> logits (N, 1, 1, classes).
/// stem imagenet: 7x7 stride 2 and max pooling; cifar: 3x3 stride 1.
graph::ActivationId resnet(graph::Graph& graph, graph::ActivationId images, const Config::Model& model,
                           const layers::BatchNormOptions& batch_norm);

}  // namespace lockstep::models
