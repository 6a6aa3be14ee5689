// The record of all calls to a stand-in for a device, in the order in which they are made.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

namespace lockstep::test {

/// Streams and events are numbered from 0 in the order of their creation; -1: none, or an event of the host.
struct Call {
  std::string what;  // "record", "wait", "copy_to_device", "conv2d.backward", "allocate", "freeze", "launch" ...
  int stream = -1;
  int event = -1;
  const void* target = nullptr;  // for copies and fills
  std::size_t size_bytes = 0;
};

class Recording {
 public:
  void add(Call call);
  std::vector<Call> calls() const;
  void clear();
  /// One call per line, for messages.
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Call> calls_;
};

}  // namespace lockstep::test
