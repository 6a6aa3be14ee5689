#include "models/model.h"

#include "lockstep/error.h"
#include "models/resnet.h"

namespace lockstep::models {

graph::ActivationId build(graph::Graph& graph, graph::ActivationId images, const Config::Model& model,
                          const layers::BatchNormOptions& batch_norm) {
  if (model.family == "resnet") return resnet(graph, images, model, batch_norm);
  fail(ErrorCode::not_supported, "model.family: {} does not classify images; only resnet does", model.family);
}

}  // namespace lockstep::models
