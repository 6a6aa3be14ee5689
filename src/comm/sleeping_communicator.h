// A communicator that makes each exchange of more than 64 KiB slower by a given time (comm.sleep_ms). If the
// communication overlaps with the backward pass, a step becomes slower by less than the sum of the delays.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/communicator.h"

namespace lockstep::comm {

class SleepingCommunicator final : public Communicator {
 public:
  SleepingCommunicator(std::unique_ptr<Communicator> inner, double sleep_ms);
  ~SleepingCommunicator() override;

  std::string describe() const override;
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) override {
    return inner_->allocate(size_bytes, purpose);
  }
  void exchange_async(const Exchange& exchange, const Event& ready, Event& done, const std::string& label) override;
  std::unique_ptr<Event> make_event() override { return std::make_unique<HostEvent>(); }
  void check() override { inner_->check(); }
  std::optional<double> exchange_seconds() const override { return inner_->exchange_seconds(); }

 private:
  struct Pending {
    std::unique_ptr<Event> inner_done;
    HostEvent* done = nullptr;
    bool sleeps = false;
  };
  void run();

  std::unique_ptr<Communicator> inner_;
  const std::chrono::duration<double, std::milli> sleep_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Pending> pending_;
  std::vector<std::unique_ptr<Event>> spare_events_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace lockstep::comm
