// The tensors of a checkpoint: their names, their shapes, and their positions in a replica's arenas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "graph/parameters.h"
#include "lockstep/ops/optimizer.h"

namespace lockstep::train {

struct StateTensor {
  enum class Arena : std::uint8_t { parameters, optimizer };

  std::string path;  // "/optimizer/momentum/conv1.weight"
  Shape shape;
  const graph::Parameter* parameter = nullptr;  // whose layout it has; null: canonical already
  const graph::ParameterPart* part = nullptr;   // of `parameter`; what is stored is the whole parameter
  Arena arena = Arena::parameters;
  std::size_t begin = 0, n_elements = 0;  // in the arena (of the optimizer: in its states), as it is stored
};

/// Parameters, then each state of the optimizer (of trainable ones), then running statistics. The result points into
/// `table`.
std::vector<StateTensor> state_tensors(const graph::ParameterTable& table, const OptimizerDescription& optimizer);

/// For a checkpoint, without `read`, which the owner of the memory adds.
checkpoint::TensorSource source_of(const StateTensor& tensor);

}  // namespace lockstep::train
