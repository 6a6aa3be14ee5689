// The interface to a recording backend's stream for code that gets its native() handle, such as the fake NCCL of the
// tests.
#pragma once

#include <functional>

namespace lockstep::test {

class WorkQueue {
 public:
  virtual ~WorkQueue() = default;
  /// Runs `work` after the work that was queued before, on the stream's thread.
  virtual void put(std::function<void()> work) = 0;
  /// Whether it is stored in a graph instead, which runs it in every launch.
  virtual bool is_captured() const = 0;
};

}  // namespace lockstep::test
