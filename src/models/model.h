// From a configuration's model.family to the function that wires it. To add a family: a file beside resnet, a line
// here.
#pragma once

#include "graph/graph.h"
#include "layers/layers.h"
#include "lockstep/config.h"

namespace lockstep::models {

/// images, normalised -> logits.
graph::ActivationId build(graph::Graph& graph, graph::ActivationId images, const Config::Model& model,
                          const layers::BatchNormOptions& batch_norm);

}  // namespace lockstep::models
