// Several threads work on numbered items; one thread uses the results in order.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep::data {

/// For each i in [0, n), calls make(i, item) in one of several threads, each with its own make = make_worker(), and
/// then use(i, item) in this thread, in order. At most two items per thread exist, and their memory is reused. Rethrows
/// the first exception that reaches this thread.
template <typename Item, typename MakeWorker, typename Use>
void work_in_order(std::size_t n, const MakeWorker& make_worker, const Use& use) {
  struct Slot {
    Item item{};
    bool is_ready = false;
    std::exception_ptr error;
  };
  const std::size_t n_threads =
      std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, std::max<std::size_t>(n, 1));
  std::vector<Slot> slots(2 * n_threads);
  std::mutex mutex;
  std::condition_variable ready, free;
  std::size_t next = 0, n_used = 0;
  bool stopping = false;
  const auto work = [&] {
    auto make = make_worker();
    std::unique_lock lock(mutex);
    while (next < n && !stopping) {
      const std::size_t i = next++;
      free.wait(lock, [&] { return stopping || i < n_used + slots.size(); });
      if (stopping) return;
      Slot& slot = slots[i % slots.size()];
      lock.unlock();
      std::exception_ptr error;
      try {
        make(i, slot.item);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      slot.error = error;
      slot.is_ready = true;
      ready.notify_one();
    }
  };
  std::vector<std::jthread> threads;
  struct Stop {  // before the threads are joined, also if use() throws
    std::mutex& mutex;
    std::condition_variable& free;
    bool& stopping;
    ~Stop() {
      const std::lock_guard lock(mutex);
      stopping = true;
      free.notify_all();
    }
  } const stop{mutex, free, stopping};
  for (std::size_t t = 0; t < n_threads; ++t) threads.emplace_back(work);
  for (std::size_t i = 0; i < n; ++i) {
    Slot& slot = slots[i % slots.size()];
    {
      std::unique_lock lock(mutex);
      ready.wait(lock, [&] { return slot.is_ready; });
    }
    if (slot.error) std::rethrow_exception(slot.error);
    use(i, slot.item);
    const std::lock_guard lock(mutex);
    slot.is_ready = false;
    ++n_used;
    free.notify_all();
  }
}

}  // namespace lockstep::data
