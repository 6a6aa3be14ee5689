// Two checkpoints, tensor by tensor, byte by byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/shape.h"

namespace lockstep::checkpoint {

struct TensorDifference {
  std::string path;
  Shape shape_a, shape_b;        // differing shapes: the rest is not compared
  std::int64_t n_differing = 0;  // values whose bits differ
  std::int64_t n_values = 0;
  std::int64_t first_index = -1;  // in row-major order
  double max_absolute = 0;        // NaN if a NaN is among the differing ones
};

struct Comparison {
  std::vector<TensorDifference> differing;
  std::vector<std::string> only_in_a, only_in_b;
  std::vector<std::string> state_keys;  // of /state, whose values differ; no part of equal()
  std::int64_t n_compared = 0;          // tensors that both have

  /// All bytes of all tensors agree.
  bool equal() const { return differing.empty() && only_in_a.empty() && only_in_b.empty(); }
};

/// Throws when one of the files is damaged.
Comparison compare(const std::string& path_a, const std::string& path_b);

}  // namespace lockstep::checkpoint
