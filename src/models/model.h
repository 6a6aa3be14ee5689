// Finds the function that wires a model by the configuration's model.family. To add a family, add a file next to resnet
// and a line in model.cpp.
#pragma once

#include "graph/graph.h"
#include "layers/layers.h"
#include "lockstep/config.h"

namespace lockstep::models {

/// images, normalised -> logits.
graph::ActivationId build(graph::Graph& graph, graph::ActivationId images, const Config::Model& model,
                          const layers::BatchNormOptions& batch_norm);

}  // namespace lockstep::models
