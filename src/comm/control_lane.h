// The World's collectives on the communication thread: one at a time, while its caller sleeps.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communication_thread.h"

namespace lockstep::comm {

class ControlLane final : public Lane {
 public:
  explicit ControlLane(CommunicationThread& thread);
  ~ControlLane() override;

  // Each throws what ended it on the communication thread. `label` is for messages.
  void broadcast(std::span<std::byte> data, int root, std::string_view label);
  std::vector<std::string> all_gather(std::string_view mine, std::string_view label);

  Told give_up(const std::exception_ptr& reason) override;

 private:
  struct Call {
    bool is_broadcast = false;
    std::string_view label;
    std::span<std::byte> data;  // broadcast
    int root = 0;
    std::string_view mine;                    // all_gather ...
    std::vector<std::string>* all = nullptr;  // ... and its result
    std::exception_ptr exception;
    bool is_over = false;
  };

  /// What each call tells the others first, so that ranks that are in different calls are found out.
  struct Header {
    std::int64_t size_bytes = 0;
    std::int64_t root = 0;
    char label[32] = {};
  };

  void check_headers(const Call& call) const;
  /// Where each rank's part of an all_gather begins; all bytes.
  std::size_t place_parts();
  void post_and_wait(Call& call);
  void finish();
  Routine run();

  CommunicationThread& thread_;
  std::mutex mutex_;
  std::condition_variable over_;
  std::atomic<Call*> call_{nullptr};

  // What MPI works on while a call runs.
  bool was_told_ = false;  // of a failure

  MpiRequest request_;
  Header header_;
  std::vector<Header> headers_;
  std::vector<int> sizes_bytes_, begins_bytes_;
  std::string received_;
};

}  // namespace lockstep::comm
