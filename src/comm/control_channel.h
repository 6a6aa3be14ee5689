// Calls that run on the communication thread, one at a time, while their caller sleeps: the collectives of World, and
// the messages of a PairProbe (pair_channel.h).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communication_thread.h"

namespace lockstep::comm {

class CallChannel : public Channel {
 public:
  Listener cancel(const std::exception_ptr& reason) override;

 protected:
  explicit CallChannel(CommunicationThread& thread) : thread_(thread) {}
  /// `post` stores the arguments of the call. Returns when the coroutine has called finish(), or rethrows the error
  /// that ended the call.
  void post_and_wait(const std::function<void()>& post);
  bool has_call() const { return has_call_.load(); }
  void finish(const std::exception_ptr& exception = nullptr);

  CommunicationThread& thread_;

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::atomic<bool> has_call_{false};
  bool has_notified_caller_ = false;  // of a failure
  std::exception_ptr exception_;
};

class ControlChannel final : public CallChannel {
 public:
  explicit ControlChannel(CommunicationThread& thread);
  ~ControlChannel() override;

  // Both rethrow the error that ended the call on the communication thread. `label` is used in messages.
  void broadcast(std::span<std::byte> data, int root, std::string_view label);
  std::vector<std::string> all_gather(std::string_view mine, std::string_view label);

 private:
  struct Call {
    bool is_broadcast = false;
    std::string_view label{};
    std::span<std::byte> data{};  // broadcast
    int root = 0;
    std::string_view mine{};                  // all_gather ...
    std::vector<std::string>* all = nullptr;  // ... and its result
  };

  /// Each call first exchanges this with the other ranks. Ranks that are in different calls are detected this way.
  struct Header {
    std::int64_t size_bytes = 0;
    std::int64_t root = 0;
    char label[32] = {};
  };

  void check_headers(const Call& call) const;
  /// Determines where each rank's bytes begin in the result of an all_gather. Returns the total size.
  std::size_t place_results();
  void make(const Call& call);
  Coroutine run();

  Call call_;

  // The memory that MPI works on while a call runs.
  MpiRequest request_;
  Header header_;
  std::vector<Header> headers_;
  std::vector<int> sizes_bytes_, begins_bytes_;
  std::string received_;
};

}  // namespace lockstep::comm
