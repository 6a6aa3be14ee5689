// A tensor with a name. Its values are in memory, or in a file from which they are read when they are needed, so that a
// model is never in memory as a whole.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/dtype.h"
#include "lockstep/shape.h"

namespace lockstep::checkpoint {

struct NamedTensor {
  /// Fills `out` with the values from element `first` on, as fp32. One thread at a time calls it.
  using Read = std::function<void(std::size_t first, std::span<float> out)>;

  NamedTensor(std::string the_name, Shape the_shape, Read the_read)
      : name(std::move(the_name)), shape(the_shape), read(std::move(the_read)) {}
  /// Throws internal unless there are as many values as the shape has elements.
  NamedTensor(std::string the_name, Shape the_shape, std::vector<float> values);

  std::string name;  // "layer1.0.conv1.weight", "bn1.running_mean", "bn1.num_batches_tracked" (int64 on export)
  Shape shape;
  Read read;
  DType dtype = DType::fp32;  // in the file

  std::size_t n_elements() const { return static_cast<std::size_t>(shape.n_elements()); }
  /// All of them.
  std::vector<float> values() const;
};

/// For values that can only be computed or checked together: keeps what `read_all` returns from the first element that
/// is read to the last one.
NamedTensor::Read read_at_once(std::function<std::vector<float>()> read_all);

/// Passes the values to `take` in their order, in pieces.
void for_each_piece(const NamedTensor& tensor,
                    const std::function<void(std::size_t first, std::span<const float> values)>& take);

/// Reads all values, for what reading them checks or computes.
void read_through(const std::vector<NamedTensor>& tensors);

}  // namespace lockstep::checkpoint
