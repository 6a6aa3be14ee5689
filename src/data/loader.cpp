// A ring of prefetch + 2 slots (two are the caller's). Micro-batch k lies in slot k % slots; a reader takes the next
// micro-batch whose slot is free, reads it without a lock, and says so. What micro-batch k holds is a function of k
// alone, so the sequence is the same for any number of readers.
#include "data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "data/sample_order.h"
#include "lockstep/error.h"
#include "lockstep/trace.h"

namespace lockstep::data {

struct Loader::State {
  struct Slot {
    std::unique_ptr<Memory> memory;
    std::vector<std::byte> own_memory;  // without a backend
    std::span<std::uint8_t> images;
    std::span<std::int32_t> labels;
    std::span<std::uint32_t> sample_ids;
    Batch batch;
    std::int64_t ready_micro_batch = -1;  // the micro-batch that was read into it last
    std::exception_ptr error;             // or why it could not be read
  };
  struct Order {
    std::int64_t epoch = -1;
    bool being_made = false;
    std::vector<std::uint32_t> samples;
  };

  std::shared_ptr<const ImageSet> set;
  LoaderOptions options;
  std::int64_t epoch_samples = 0, epoch_steps = 0;
  std::int64_t n_micro_batches = 0;  // in all; -1: endless

  std::mutex mutex;
  std::condition_variable slot_free, micro_batch_ready, order_ready;
  std::vector<Slot> slots;
  std::vector<Order> orders;          // of the epochs that the ring may span; epoch e in orders[e % orders.size()]
  std::int64_t next_micro_batch = 0;  // to be taken by a reader
  std::int64_t first_in_use = 0;      // the caller's micro-batches, once it has some; all before it are free
  std::int64_t n_given = 0;           // micro-batches given to the caller
  bool stopping = false;
  double wait_seconds = 0;
  std::vector<std::thread> threads;

  State(std::shared_ptr<const ImageSet> image_set, const LoaderOptions& wanted);
  void take_memory(Slot& slot);
  void stop();
  void run_reader();
  void read_micro_batch(std::int64_t micro_batch, Slot& slot);
  const std::uint32_t* order_of(std::int64_t epoch);
};

Loader::State::State(std::shared_ptr<const ImageSet> image_set, const LoaderOptions& wanted)
    : set(std::move(image_set)), options(wanted) {
  const LoaderOptions& o = options;
  require(o.global_batch > 0 && o.n_micro_batches > 0 && o.rank >= 0 && o.n_shards > 0 &&
              o.rank + o.n_shards <= o.size && o.readers > 0 && o.prefetch > 0 && o.first_step >= 0 &&
              o.max_samples >= 0,
          ErrorCode::internal, "the loader was given impossible options");
  const std::int64_t shard = shards_of(o.global_batch, o.rank, o.n_shards, o.size).size();
  require(
      o.capacity >= (shard + o.n_micro_batches - 1) / o.n_micro_batches, ErrorCode::internal,
      "a capacity of {} samples does not hold a micro-batch of a global batch of {} on {} ranks in {} micro-batches",
      o.capacity, o.global_batch, o.size, o.n_micro_batches);
  const std::int64_t n = set->info().n_samples;
  epoch_samples = o.max_samples > 0 ? std::min(o.max_samples, n) : n;
  epoch_steps = steps_per_epoch(epoch_samples, o.global_batch, o.drop_last);
  require(epoch_steps > 0, ErrorCode::data_range,
          "{} samples of {} do not fill one global batch of {}: use a smaller train.global_batch, or data.drop_last: "
          "false",
          epoch_samples, set->info().path, o.global_batch);
  n_micro_batches = o.last_step < 0 ? -1 : std::max<std::int64_t>(0, o.last_step - o.first_step) * o.n_micro_batches;

  slots.resize(static_cast<std::size_t>(o.prefetch) + 2);
  for (Slot& slot : slots) {
    take_memory(slot);
    slot.batch = {0, slot.images, slot.labels, slot.sample_ids};
  }
  const std::int64_t epoch_micro_batches = epoch_steps * o.n_micro_batches;
  orders.resize(static_cast<std::size_t>((o.prefetch + epoch_micro_batches) / epoch_micro_batches) + 1);
  try {
    for (int i = 0; i < o.readers; ++i) threads.emplace_back([this] { run_reader(); });
  } catch (...) {
    stop();
    throw;
  }
}

void Loader::State::take_memory(Slot& slot) {
  const auto n = static_cast<std::size_t>(options.capacity);
  const std::size_t image_bytes = n * set->info().image_bytes();
  const std::size_t size_bytes = n * (sizeof(std::int32_t) + sizeof(std::uint32_t)) + image_bytes;
  if (options.backend != nullptr)
    slot.memory = options.backend->allocate_host(size_bytes, "batches read ahead");
  else
    slot.own_memory.resize(size_bytes);
  // The widest first, so that each is aligned.
  auto* at = slot.memory ? static_cast<std::byte*>(slot.memory->data()) : slot.own_memory.data();
  slot.labels = {reinterpret_cast<std::int32_t*>(at), n};
  slot.sample_ids = {reinterpret_cast<std::uint32_t*>(at + n * sizeof(std::int32_t)), n};
  slot.images = {reinterpret_cast<std::uint8_t*>(slot.sample_ids.data() + n), image_bytes};
}

void Loader::State::stop() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  slot_free.notify_all();
  order_ready.notify_all();
  for (std::thread& thread : threads) thread.join();
}

void Loader::State::run_reader() {
  const trace::ThreadRow row("reader");
  std::unique_lock lock(mutex);
  const auto n_slots = static_cast<std::int64_t>(slots.size());
  while (true) {
    slot_free.wait(lock, [&] {
      return stopping || next_micro_batch == n_micro_batches || next_micro_batch < first_in_use + n_slots;
    });
    if (stopping || next_micro_batch == n_micro_batches) return;
    const std::int64_t micro_batch = next_micro_batch++;
    Slot& slot = slots[static_cast<std::size_t>(micro_batch % n_slots)];
    lock.unlock();
    std::exception_ptr error;
    try {
      read_micro_batch(micro_batch, slot);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    slot.error = error;
    slot.ready_micro_batch = micro_batch;
    micro_batch_ready.notify_all();
  }
}

/// The epoch's order, made by the first reader that needs it while others wait; null: no shuffle, or stopping.
const std::uint32_t* Loader::State::order_of(std::int64_t epoch) {
  if (!options.shuffle) return nullptr;
  Order& order = orders[static_cast<std::size_t>(epoch) % orders.size()];
  std::unique_lock lock(mutex);
  if (order.epoch != epoch) {
    order.epoch = epoch;
    order.being_made = true;
    lock.unlock();
    // An epoch that starts from the whole set's order: max_samples takes the first of it.
    std::vector<std::uint32_t> samples;
    std::exception_ptr error;
    try {
      samples = epoch_order(options.seed, static_cast<std::uint32_t>(epoch), set->info().n_samples, true);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    order.samples = std::move(samples);
    order.being_made = false;
    order_ready.notify_all();
    if (error) std::rethrow_exception(error);
  }
  order_ready.wait(lock, [&] { return !order.being_made; });
  require(!order.samples.empty(), ErrorCode::out_of_memory, "the order of epoch {} could not be made", epoch);
  return order.samples.data();
}

void Loader::State::read_micro_batch(std::int64_t micro_batch, Slot& slot) {
  const std::int64_t step = options.first_step + micro_batch / options.n_micro_batches;
  const trace::Span span(trace::Kind::read, "read for step", step + 1);
  const std::int64_t begin = step % epoch_steps * options.global_batch;
  const std::int64_t batch = std::min(options.global_batch, epoch_samples - begin);
  const Shard mine = shards_of(batch, options.rank, options.n_shards, options.size);
  const Shard cut =
      shard_of(mine.size(), static_cast<int>(micro_batch % options.n_micro_batches), options.n_micro_batches);
  const std::int64_t first = begin + mine.begin + cut.begin;
  const auto n = static_cast<std::size_t>(cut.size());
  const std::uint32_t* order = n > 0 ? order_of(step / epoch_steps) : nullptr;
  const std::size_t image_bytes = set->info().image_bytes();
  for (std::size_t i = 0; i < n; ++i) {
    const auto position = static_cast<std::size_t>(first) + i;
    const std::uint32_t sample = order ? order[position] : static_cast<std::uint32_t>(position);
    set->read(sample, static_cast<std::uint32_t>(step / epoch_steps), slot.images.subspan(i * image_bytes, image_bytes),
              slot.labels[i]);
    slot.sample_ids[i] = static_cast<std::uint32_t>(set->info().first_sample) + sample;
  }
  set->require_unchanged();
  std::fill(slot.images.begin() + static_cast<std::ptrdiff_t>(n * image_bytes), slot.images.end(), std::uint8_t{0});
  std::fill(slot.labels.begin() + static_cast<std::ptrdiff_t>(n), slot.labels.end(), -1);
  std::fill(slot.sample_ids.begin() + static_cast<std::ptrdiff_t>(n), slot.sample_ids.end(), 0u);
  slot.batch.n_samples = cut.size();
}

Loader::Loader(std::shared_ptr<const ImageSet> set, const LoaderOptions& options)
    : state_(std::make_unique<State>(std::move(set), options)) {}

Loader::~Loader() { state_->stop(); }

std::int64_t Loader::steps_per_epoch(std::int64_t n_samples, std::int64_t global_batch, bool drop_last) {
  return drop_last ? n_samples / global_batch : (n_samples + global_batch - 1) / global_batch;
}

const Batch& Loader::next() {
  State& s = *state_;
  require(s.n_given != s.n_micro_batches, ErrorCode::internal,
          "the loader was asked for more than its {} micro-batches", s.n_micro_batches);
  const trace::Span span(trace::Kind::wait, "data");
  const Clock::time_point begin = Clock::now();
  std::unique_lock lock(s.mutex);
  s.first_in_use = std::max<std::int64_t>(0, s.n_given - 1);
  s.slot_free.notify_all();
  State::Slot& slot = s.slots[static_cast<std::size_t>(s.n_given) % s.slots.size()];
  s.micro_batch_ready.wait(lock, [&] { return slot.ready_micro_batch == s.n_given; });
  s.wait_seconds += seconds_since(begin);
  if (slot.error) std::rethrow_exception(slot.error);
  ++s.n_given;
  return slot.batch;
}

double Loader::wait_seconds() const { return state_->wait_seconds; }

}  // namespace lockstep::data
