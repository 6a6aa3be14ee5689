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
  std::string path;  // "/optimizer/momentum/conv1.weight"
  Shape shape;
  const graph::Parameter* parameter = nullptr;  // whose layout it has; null: canonical already
  const graph::ParameterPart* part = nullptr;   // of `parameter`; what is stored is the whole parameter
  int state = kNoState;                         // of the optimizer, from 0, or after these the averages
  DType dtype = DType::fp32;                    // fp32 or bf16; parameters in bf16 have no masters
  std::size_t begin = 0, n_elements = 0;        // in the parameter arena or that state, with its layout

  static constexpr int kNoState = -1;  // in the parameter arena
};

/// Whether there are moving averages of the weights (ema.decay).
enum class Averages : std::uint8_t { none, kept };

/// Parameters without those of a base, then each state of the optimizer (of trainable ones), then running statistics,
/// then the averages of what is trained. The result points into `table`.
std::vector<StateTensor> state_tensors(const graph::ParameterTable& table, const OptimizerDescription& optimizer,
                                       Averages averages);

/// The source of a tensor for a checkpoint, without `read`, which the owner of the memory adds. Values in bf16 are read
/// as they are, two in the place of each float, and widened when they are unpacked.
checkpoint::TensorSource source_of(const StateTensor& tensor);

}  // namespace lockstep::train
