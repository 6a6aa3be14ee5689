// Reading tensors once per node: one rank of each node reads, ahead of what is used, into memory that the ranks of the
// node share. No more than two pieces are in memory at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/named_tensor.h"
#include "lockstep/communicator.h"

namespace lockstep::checkpoint {

/// Some consecutive values of a tensor, which is given by its index.
struct TensorPiece {
  std::size_t tensor = 0, first = 0;
  std::span<const float> values;
};

/// Passes all values of the tensors of the file `path` to `take`, in their order, while the next ones are read. Rank 0
/// shows the progress. Collective, with the same tensors on all ranks. What reading or `take` throws on one rank, all
/// ranks throw, and checkpoint_damaged if a value is not usable (model_file.h). All throw StoppedBySignal after a
/// signal.
void stream_tensors(const std::string& path, std::vector<NamedTensor> tensors, World& world,
                    const std::function<void(const TensorPiece&)>& take);

}  // namespace lockstep::checkpoint
