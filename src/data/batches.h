// Several threads process the batches of a stream of unknown length. The results are used in the order of the stream.
// Memory is bounded: only a few batches per thread are in progress.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::data {

/// The amount of source data that makes a batch.
inline constexpr std::size_t kBatchBytes = 256u << 10;
inline constexpr std::size_t kBatchesPerThread = 4;
/// The limit for all batches in progress together; a single batch may be larger.
inline constexpr std::size_t kMaxBytesUnderWay = 64u << 20;

/// Threads that work on batches. The batches are taken back in the order in which they were given. A batch has a member
/// n_bytes.
template <typename Batch>
class BatchWorkers {
 public:
  BatchWorkers(std::function<void(Batch&)> work, int n_threads) : do_work_(std::move(work)) {
    try {
      for (int t = 0; t < n_threads; ++t) threads_.emplace_back([this] { run(); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~BatchWorkers() { stop(); }

  bool empty() const { return jobs_.empty(); }
  bool has_room_for(const Batch& batch) const {
    return jobs_.size() < kBatchesPerThread * threads_.size() && n_bytes_ + batch.n_bytes <= kMaxBytesUnderWay;
  }
  void give(std::unique_ptr<Batch> batch) {
    const std::size_t n_bytes = batch->n_bytes;
    Task task([this, batch = std::move(batch)]() mutable {
      do_work_(*batch);
      return std::move(batch);
    });
    n_bytes_ += n_bytes;
    jobs_.push_back({task.get_future(), n_bytes});
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(task));
    }
    has_work_.notify_one();
  }
  /// The oldest batch, when the work on it is done. Throws what the work threw.
  std::unique_ptr<Batch> take() {
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    n_bytes_ -= job.n_bytes;
    return job.done.get();
  }

 private:
  using Task = std::packaged_task<std::unique_ptr<Batch>()>;
  struct Job {
    std::future<std::unique_ptr<Batch>> done;
    std::size_t n_bytes;
  };

  void run() {
    while (true) {
      Task task;
      {
        std::unique_lock lock(mutex_);
        has_work_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
        if (stopping_) return;
        task = std::move(waiting_.front());
        waiting_.pop_front();
      }
      task();
    }
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    has_work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::function<void(Batch&)> do_work_;
  std::deque<Job> jobs_;  // used only by the thread that gives and takes
  std::size_t n_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable has_work_;
  std::deque<Task> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

/// Calls work(batch) in one of several threads for each batch that next() returns, until that is null, and then
/// write(batch) in this thread, in order. n_threads 0: as many as cores.
template <typename Batch>
void process_batches(int n_threads, const std::function<std::unique_ptr<Batch>()>& next,
                     const std::function<void(Batch&)>& work, const std::function<void(const Batch&)>& write) {
  if (n_threads <= 0) n_threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  BatchWorkers<Batch> workers(work, n_threads);
  while (std::unique_ptr<Batch> batch = next()) {
    while (!workers.empty() && !workers.has_room_for(*batch)) write(*workers.take());
    workers.give(std::move(batch));
  }
  while (!workers.empty()) write(*workers.take());
}

}  // namespace lockstep::data
