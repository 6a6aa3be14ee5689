// The only table of ResNets: their depths, and the model that a set of tensors with torchvision's names belongs to.
// Source: He et al., "Deep residual learning for image recognition", 2015, table 1.
#pragma once

#include <array>
#include <string>

#include "lockstep/config.h"
#include "models/tensor_shapes.h"

namespace lockstep::models {

struct ResnetDepth {
  int depth = 0;
  std::array<int, 4> blocks{};  // of the four stages, whose channels double from stage to stage
  bool bottleneck = false;      // 1x1, 3x3, 1x1 with four times the channels; else 3x3, 3x3
};

/// Throws not_supported for an unknown depth.
const ResnetDepth& resnet_depth(int depth);

/// The family, depth, stem and classes of the ResNet that has these tensors, which have torchvision's names. Throws
/// checkpoint_mismatch, which says what in `source` does not match.
Config::Model infer_resnet(const TensorShapes& tensors, const std::string& source);

}  // namespace lockstep::models
