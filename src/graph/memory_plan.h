// Liveness and the activation arena: every tensor of the step has a first and a last moment of use; tensors that never
// live together may share memory.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::graph {

using TensorId = int;
inline constexpr TensorId kNoTensor = -1;
inline constexpr std::size_t kTensorAlignment = 64;  // bytes: a cache line, and a vector of AVX-512

constexpr std::size_t aligned(std::size_t size_bytes) {
  return (size_bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

struct TensorInfo {
  std::string name;
  std::size_t size_bytes = 0;
  int first_use = -1, last_use = -1;  // moments of the step; -1: never used
  bool persistent = false;            // lives from before the step to after it
  std::size_t offset = 0;             // in the arena, set by place()
};

class MemoryPlan {
 public:
  TensorId add(std::string name, std::size_t size_bytes, bool persistent = false);
  void use(TensorId tensor, int moment);
  /// Chooses offsets: largest first, each at the lowest free place among those alive at the same time.
  void place();

  const TensorInfo& info(TensorId tensor) const { return tensors_[static_cast<std::size_t>(tensor)]; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  std::size_t size_bytes() const { return size_bytes_; }                 // with reuse
  std::size_t size_bytes_without_reuse() const { return total_bytes_; }  // every tensor its own place

 private:
  std::vector<TensorInfo> tensors_;
  std::size_t size_bytes_ = 0, total_bytes_ = 0;
};

}  // namespace lockstep::graph
