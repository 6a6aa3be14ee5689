// Compares two checkpoints or models of other programs byte by byte, tensor by tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/shape.h"

namespace lockstep::checkpoint {

struct TensorDifference {
  std::string path;
  Shape shape_a, shape_b;        // if they differ, the values are not compared
  std::int64_t n_differing = 0;  // values whose bits differ
  std::int64_t n_values = 0;
  std::int64_t first_index = -1;  // in row-major order
  double max_absolute = 0;        // NaN if one of the differing values is NaN
};

struct Comparison {
  std::vector<TensorDifference> differing;
  std::vector<std::string> only_in_a, only_in_b;
  std::vector<std::string> state_keys;  // keys of /state with different values; not considered by equal()
  std::int64_t n_compared = 0;          // tensors in both files

  /// Whether all bytes of all tensors are equal.
  bool equal() const { return differing.empty() && only_in_a.empty() && only_in_b.empty(); }
};

/// Throws when one of the files is damaged. If one is a .safetensors file or a Hugging Face directory, only weights and
/// running statistics are compared, in fp32.
Comparison compare(const std::string& path_a, const std::string& path_b);

}  // namespace lockstep::checkpoint
