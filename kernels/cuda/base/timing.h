// Memory and a clock for timing algorithms. For use outside of steps only, since this allocates and waits.
#pragma once

#include <cstddef>
#include <functional>

#include "kernels/cuda/base/context.h"
#include "lockstep/event.h"

namespace lockstep::cuda {

/// Filled with numbers near 1 or 0.01 of any type. Throws out_of_memory.
class TimingMemory {
 public:
  TimingMemory(std::size_t size_bytes, const CudaContext& context);
  ~TimingMemory();
  TimingMemory(const TimingMemory&) = delete;
  TimingMemory& operator=(const TimingMemory&) = delete;

  template <typename T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

/// The time that a run takes in a captured step: the smallest average over ten runs that are launched as one graph. A
/// single call on an idle stream would measure its launches, which take as long as the kernels of small layers. Throws
/// what a run throws, and clears CUDA's error. A run that takes more than twice `best` is not measured again, and one
/// whose single call takes much longer is not captured.
double seconds_of(const std::function<void(Stream&)>& run, const CudaContext& context, double best = 1e30);

}  // namespace lockstep::cuda
