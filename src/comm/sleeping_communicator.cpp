#include "comm/sleeping_communicator.h"

#include <fmt/format.h>

#include <utility>

#include "comm/communicator_memory.h"

namespace lockstep::comm {
namespace {
constexpr std::size_t kUndelayedBytes = std::size_t{64} << 10;  // so that statistics and flags are not delayed
}

SleepingCommunicator::SleepingCommunicator(std::unique_ptr<Communicator> inner, double sleep_ms)
    : inner_(std::move(inner)), sleep_(sleep_ms), thread_([this] { run(); }) {}

SleepingCommunicator::~SleepingCommunicator() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::string SleepingCommunicator::describe() const {
  return fmt::format("{}, each all-reduce delayed by {} ms", inner_->describe(), sleep_.count());
}

void SleepingCommunicator::exchange_async(const Exchange& exchange, const Event& ready, Event& done,
                                          const std::string& label) {
  const Slice& slice = exchange.slice;
  HostEvent& host_done = host_event(done, label);
  Pending pending{nullptr, &host_done, slice.n_elements * size_bytes(slice.dtype) > kUndelayedBytes};
  {
    const std::lock_guard lock(mutex_);
    if (!spare_events_.empty()) {
      pending.inner_done = std::move(spare_events_.back());
      spare_events_.pop_back();
    }
  }
  if (pending.inner_done == nullptr) pending.inner_done = inner_->make_event();
  inner_->exchange_async(exchange, ready, *pending.inner_done, label);
  host_done.begin();
  {
    const std::lock_guard lock(mutex_);
    pending_.push_back(std::move(pending));
  }
  changed_.notify_all();
}

void SleepingCommunicator::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !pending_.empty(); });
    if (pending_.empty()) return;
    Pending pending = std::move(pending_.front());
    pending_.pop_front();
    lock.unlock();
    pending.inner_done->synchronize();
    if (pending.sleeps) std::this_thread::sleep_for(sleep_);
    lock.lock();
    spare_events_.push_back(std::move(pending.inner_done));
    pending.done->complete();
  }
}

}  // namespace lockstep::comm
