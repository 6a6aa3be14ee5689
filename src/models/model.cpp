#include "models/model.h"

#include "lockstep/error.h"
#include "models/resnet.h"

namespace lockstep::models {

graph::ActivationId build(graph::Graph& graph, graph::ActivationId images, const Config::Model& model) {
  if (model.family == "resnet") return resnet(graph, images, model);
  fail(ErrorCode::not_supported, "model.family: resnet is known, not {}", model.family);
}

}  // namespace lockstep::models
