// Several threads process the batches of a stream of unknown length. The results are used in the order of the stream.
// Memory is bounded: only a few batches per thread are in progress.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
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
    n_bytes_ += batch->n_bytes;
    jobs_.push_back(std::make_unique<Job>(std::move(batch)));
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(jobs_.back().get());
    }
    has_work_.notify_one();
  }
  /// The oldest batch, when the work on it is done. Throws what the work threw.
  std::unique_ptr<Batch> take() {
    const std::unique_ptr<Job> job = std::move(jobs_.front());
    jobs_.pop_front();
    {
      std::unique_lock lock(mutex_);
      done_.wait(lock, [&] { return job->is_done; });
    }
    n_bytes_ -= job->n_bytes;
    if (job->error) std::rethrow_exception(job->error);
    return std::move(job->batch);
  }

 private:
  struct Job {
    explicit Job(std::unique_ptr<Batch> given) : batch(std::move(given)), n_bytes(batch->n_bytes) {}
    std::unique_ptr<Batch> batch;
    std::size_t n_bytes;
    bool is_done = false;
    std::exception_ptr error;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      has_work_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      Job& job = *waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      try {
        do_work_(*job.batch);
      } catch (...) {
        job.error = std::current_exception();
      }
      lock.lock();
      job.is_done = true;
      done_.notify_one();
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
  std::deque<std::unique_ptr<Job>> jobs_;  // used only by the thread that gives and takes
  std::size_t n_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable has_work_, done_;
  std::deque<Job*> waiting_;
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
