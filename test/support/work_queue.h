// What a stream of the recording backend is to those that get its native() handle, such as the NCCL that tests use.
#pragma once

#include <functional>

namespace lockstep::test {

class WorkQueue {
 public:
  virtual ~WorkQueue() = default;
  /// Runs after what was put in before, on the stream's thread.
  virtual void put(std::function<void()> work) = 0;
};

}  // namespace lockstep::test
