// The interface of a recording backend's stream for code that gets its native() handle, such as the NCCL of the tests.
#pragma once

#include <functional>

namespace lockstep::test {

class WorkQueue {
 public:
  virtual ~WorkQueue() = default;
  /// Runs after the work that was queued before, on the stream's thread.
  virtual void put(std::function<void()> work) = 0;
};

}  // namespace lockstep::test
