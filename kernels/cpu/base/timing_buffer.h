// Memory for an algorithm that is timed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "lockstep/error.h"

namespace lockstep::cpu {

/// 64-byte aligned, of numbers near 1 in fp32 and bf16: zeros and denormals could be faster or slower.
class TimingBuffer {
 public:
  explicit TimingBuffer(std::size_t size_bytes)
      : data_(std::aligned_alloc(64, (std::max<std::size_t>(size_bytes, 1) + 63) / 64 * 64)) {
    require(data_ != nullptr, ErrorCode::out_of_memory, "an allocation of {} bytes to time algorithms failed",
            size_bytes);
    std::memset(data_, 0x3f, size_bytes);
  }
  ~TimingBuffer() { std::free(data_); }
  TimingBuffer(const TimingBuffer&) = delete;
  TimingBuffer& operator=(const TimingBuffer&) = delete;
  template <typename T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_;
};

}  // namespace lockstep::cpu
