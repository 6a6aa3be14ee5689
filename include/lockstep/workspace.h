// The layout of an op's workspace or saved memory (lockstep/op.h): offsets, reserved when planning.
#pragma once

#include <algorithm>
#include <cstddef>

namespace lockstep {

class WorkspacePlan {
 public:
  static constexpr std::size_t kAlignment = 256;  // bytes; cuBLAS requires it of its workspace

  /// Reserves memory after what was reserved so far. Returns its offset.
  std::size_t take(std::size_t size_bytes) {
    const std::size_t offset = end_;
    end_ += (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
    peak_ = std::max(peak_, end_);
    return offset;
  }
  /// Releases the memory reserved since `mark`, so that it can be reserved again.
  std::size_t mark() const { return end_; }
  void rewind(std::size_t mark) { end_ = mark; }
  std::size_t size_bytes() const { return peak_; }

 private:
  std::size_t end_ = 0, peak_ = 0;
};

/// A part of a workspace.
template <typename T = void>
T* at(void* workspace, std::size_t offset) {
  return reinterpret_cast<T*>(static_cast<std::byte*>(workspace) + offset);
}

}  // namespace lockstep
