#include "comm/staged_communicator.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "base/failure.h"
#include "base/signals.h"
#include "comm/sum.h"
#include "lockstep/error.h"

namespace lockstep::comm {

class StagedCommunicator::Worker {
 public:
  Worker(std::unique_ptr<Communicator> inner, World& world, Backend& backend)
      : inner_(std::move(inner)),
        world_(world),
        backend_(backend),
        ring_(inner_->allocate(kRingBytes, "the ring buffer between device and host")),
        pinned_(backend.pin_host(ring_->data(), kRingBytes)),
        to_host_(backend.make_stream()),
        to_device_(backend.make_stream()) {
    for (std::size_t i = 0; i < kSlots; ++i)
      slots_[i] = {static_cast<std::byte*>(ring_->data()) + i * kChunkBytes, backend.make_event(), inner_->make_event(),
                   backend.make_event()};
  }

  std::string describe() const { return inner_->describe(); }

  void post(const Exchange& exchange, const Event& ready, HostEvent& done, const std::string& label) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return n_requests_ < kQueueLength; });
    Request& request = queue_[(first_ + n_requests_) % kQueueLength];
    request.exchange = exchange;
    request.ready = &ready;
    request.done = &done;
    request.label.assign(label);  // allocates nothing once it has held the longest label
    done.begin();
    ++n_requests_;
    changed_.notify_all();
  }

  /// Returns false if requests are left, which happens when an exception ends the step. The thread then continues with
  /// these requests until the process ends.
  bool stop() {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
    return n_requests_ == 0;
  }

  void run() {
    pthread_setname_np(pthread_self(), "staging");
    try {
      backend_.enter_thread();
      while (Request* request = next()) {
        run(*request);
        HostEvent* done = request->done;
        {
          const std::lock_guard lock(mutex_);
          first_ = (first_ + 1) % kQueueLength;
          --n_requests_;
          changed_.notify_all();
        }
        done->complete();
      }
    } catch (const std::exception& error) {
      end_job(error);
    }
  }

 private:
  static constexpr std::size_t kQueueLength = 256;

  struct Request {
    Exchange exchange;
    const Event* ready = nullptr;
    HostEvent* done = nullptr;
    std::string label;
  };

  /// Space for one chunk in the ring, with events for the stages that the chunk passes through.
  struct Slot {
    std::byte* data = nullptr;
    std::unique_ptr<Event> fetched, exchanged, returned;
  };

  Request* next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stop_ || n_requests_ > 0; });
    return n_requests_ > 0 ? &queue_[first_] : nullptr;
  }

  /// Equal parts of the slice's shards: elements [begin, begin + n_elements) of each. An all-reduce has one shard. The
  /// same part of each open sum is behind them in the slot.
  struct Chunk {
    const Exchange* exchange = nullptr;
    int n_shards = 1;
    std::size_t begin = 0, n_elements = 0;
  };

  void run(const Request& request) {
    request.ready->synchronize();
    const Exchange& exchange = request.exchange;
    const int n_shards = exchange.collective == Collective::all_reduce ? 1 : world_.size();
    const std::size_t shard = equal_shard(exchange.slice.n_elements, n_shards, 0).n_elements,
                      length = equal_shard(kChunkBytes / size_bytes(exchange.slice.dtype),
                                           n_shards + (exchange.round.exists() ? kMaxOpenSums : 0), 0)
                                   .n_elements;  // the same in all rounds of a sum, as are the owners
    const std::size_t n_chunks = (shard + length - 1) / length;
    const auto chunk = [&](std::size_t i) {
      return Chunk{&exchange, n_shards, i * length, std::min(length, shard - i * length)};
    };
    for (std::size_t i = 0; i < n_chunks + 2; ++i) {
      if (i < n_chunks) fetch(chunk(i), slots_[i % kSlots]);
      if (i >= 1 && i - 1 < n_chunks) start(request, chunk(i - 1), slots_[(i - 1) % kSlots]);
      if (i >= 2) return_chunk(chunk(i - 2), slots_[(i - 2) % kSlots]);
    }
    if (n_chunks > 0) slots_[(n_chunks - 1) % kSlots].returned->synchronize();
  }

  /// Copies the chunk's part of a shard between the slice and the slot.
  void copy(const Chunk& chunk, int shard, const Slot& slot, Stream& stream, bool to_slot) {
    const Slice& slice = chunk.exchange->slice;
    const std::size_t element_bytes = size_bytes(slice.dtype);
    const std::size_t in_slice = equal_shard(slice.n_elements, chunk.n_shards, shard).begin + chunk.begin,
                      in_slot = static_cast<std::size_t>(shard) * chunk.n_elements;
    std::byte* const of_slice = static_cast<std::byte*>(slice.data) + in_slice * element_bytes;
    std::byte* const of_slot = slot.data + in_slot * element_bytes;
    backend_.copy(to_slot ? of_slot : of_slice, to_slot ? of_slice : of_slot, chunk.n_elements * element_bytes, stream);
  }

  void copy_open(const Chunk& chunk, int n_entries, const Slot& slot, Stream& stream, bool to_slot) {
    const DType dtype = chunk.exchange->slice.dtype;
    const OpenSums open = open_sums(chunk.exchange->round, chunk.begin, dtype);
    const std::size_t part_bytes = chunk.n_elements * size_bytes(dtype);
    for (int i = 0; i < n_entries; ++i) {
      std::byte* const of_slot = slot.data + static_cast<std::size_t>(chunk.n_shards + i) * part_bytes;
      std::byte* const entry = open.at(static_cast<std::size_t>(i));
      backend_.copy(to_slot ? of_slot : entry, to_slot ? entry : of_slot, part_bytes, stream);
    }
  }

  void fetch(const Chunk& chunk, Slot& slot) {
    slot.returned->synchronize();  // waits for the previous chunk in this slot
    for (int shard = 0; shard < chunk.n_shards; ++shard)
      if (chunk.exchange->collective != Collective::all_gather || shard == world_.rank())
        copy(chunk, shard, slot, *to_host_, true);
    copy_open(chunk, chunk.exchange->round.n_before, slot, *to_host_, true);
    slot.fetched->record(*to_host_);
  }

  void start(const Request& request, const Chunk& chunk, Slot& slot) {
    slot.fetched->synchronize();
    Exchange exchange = request.exchange;
    exchange.slice.data = slot.data;
    exchange.slice.n_elements = static_cast<std::size_t>(chunk.n_shards) * chunk.n_elements;
    exchange.round.open = slot.data + exchange.slice.n_elements * size_bytes(exchange.slice.dtype);
    exchange.round.stride = chunk.n_elements;
    inner_->exchange_async(exchange, ready_, *slot.exchanged, request.label);
  }

  void return_chunk(const Chunk& chunk, Slot& slot) {
    slot.exchanged->synchronize();
    for (int shard = 0; shard < chunk.n_shards; ++shard)
      if (chunk.exchange->collective == Collective::all_reduce ||
          (shard == world_.rank()) == (chunk.exchange->collective == Collective::reduce_scatter))
        copy(chunk, shard, slot, *to_device_, false);
    if (chunk.exchange->round.exists()) copy_open(chunk, chunk.exchange->round.n_after(), slot, *to_device_, false);
    slot.returned->record(*to_device_);
  }

  /// Ends the job, because an event cannot report an error: the waiting thread would not learn of the failure.
  void end_job(const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    const bool is_consequence =
        known && (known->code() == ErrorCode::comm_rank_lost || known->code() == ErrorCode::comm_rank_died);
    if (!is_consequence || world_.is_first_to_report())
      print_error(fmt::format("rank {} on {}", world_.rank(), world_.host()), error);
    note_failure();
    world_.abort(kExitFailed);
  }

  std::unique_ptr<Communicator> inner_;
  World& world_;
  Backend& backend_;
  std::unique_ptr<Memory> ring_, pinned_;
  std::unique_ptr<Stream> to_host_, to_device_;  // one per direction, so that copies overlap
  std::array<Slot, kSlots> slots_;
  const HostEvent ready_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Request, kQueueLength> queue_;
  std::size_t first_ = 0, n_requests_ = 0;
  bool stop_ = false;
};

StagedCommunicator::StagedCommunicator(std::unique_ptr<Communicator> inner, World& world, Backend& backend)
    : world_(world), backend_(backend), worker_(std::make_shared<Worker>(std::move(inner), world, backend)) {
  const SignalsBlocked blocked;
  thread_ = std::thread([worker = worker_] { worker->run(); });
}

StagedCommunicator::~StagedCommunicator() {
  if (worker_->stop())
    thread_.join();
  else
    thread_.detach();
}

std::string StagedCommunicator::describe() const {
  return fmt::format("staged through host memory: {}", worker_->describe());
}

void StagedCommunicator::exchange_async(const Exchange& exchange, const Event& ready, Event& done,
                                        const std::string& label) {
  memory_.check_contains(exchange.slice, label);
  check_exchange(exchange, size(), label);
  worker_->post(exchange, ready, host_event(done, label), label);
}

}  // namespace lockstep::comm
