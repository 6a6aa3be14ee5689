// Liveness and the activation arena: tensors that are never alive together may share memory.
//
// The graph reports every access in the order of the execution list. A write overwrites all of a tensor, so it begins a
// new live interval; a read or an update extends the current one. A tensor that is recomputed therefore has several
// intervals, and between them its memory serves other tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/shape.h"

namespace lockstep::graph {

using TensorId = int;
inline constexpr TensorId kNoTensor = -1;
inline constexpr std::size_t kTensorAlignment = 64;  // bytes: a cache line, and a vector of AVX-512

constexpr std::size_t aligned(std::size_t size_bytes) {
  return (size_bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

/// write: overwrites all of it. update: reads it and writes it, for example accumulates into it.
enum class Access : std::uint8_t { read, write, update };

/// Positions in the execution order, from a write to the last access before the next write.
struct LiveInterval {
  int first = 0, last = 0;
};

struct TensorInfo {
  std::string name;
  std::size_t size_bytes = 0;
  bool persistent = false;           // lives from before the step to after it
  std::vector<LiveInterval> live{};  // ascending; empty: the tensor is never used
  std::size_t offset = 0;            // in the arena, set by place()
};

class MemoryPlan {
 public:
  TensorId add(std::string name, std::size_t size_bytes, bool persistent = false);
  /// Positions do not descend from call to call. Within one position, reads come before writes.
  void access(TensorId tensor, int position, Access access);
  /// Chooses offsets: largest first, each at the lowest free offset among the tensors that are alive at the same time.
  void place();

  const TensorInfo& info(TensorId tensor) const { return tensors_[static_cast<std::size_t>(tensor)]; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  std::size_t size_bytes() const { return size_bytes_; }                 // with reuse
  std::size_t size_bytes_without_reuse() const { return total_bytes_; }  // if no tensors shared memory

 private:
  std::vector<TensorInfo> tensors_;
  std::size_t size_bytes_ = 0, total_bytes_ = 0;
};

/// Whether the two tensors must not share memory.
bool alive_together(const TensorInfo& a, const TensorInfo& b);

// Sizes that ops can address. Libraries count the elements of one sample, the positions of all samples and the elements
// of a parameter in 32-bit integers; larger sizes make them crash or compute wrong results. Everything up to these
// limits fits into 64-bit sums of bytes.
inline constexpr std::int64_t kMaxElements = 0x7fffffff;          // of one sample's activation, or of a parameter
inline constexpr std::int64_t kMaxBatch = std::int64_t{1} << 24;  // samples of a rank at once

enum class Mode : std::uint8_t;

/// Throws op_description. The first dimension is the batch, the last one the channels. The mode decides which key the
/// message names.
void require_possible_activation(const std::string& name, const Shape& shape, Mode mode);
void require_possible_parameter(const std::string& name, const Shape& shape);

}  // namespace lockstep::graph
