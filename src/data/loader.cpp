// A ring of prefetch + 2 slots, of which the caller holds two. Micro-batch k is in slot k % slots. A micro-batch is
// divided into parts of 8 to 15 samples, so that many readers can work on it. A reader thread takes the next part whose
// slot is free and reads it without a lock. The reader that finishes the last part of a micro-batch marks it as ready.
// The content of micro-batch k is a function of k alone, so the sequence is the same for any number of readers. Only
// the places of the samples of a packed field may differ.
#include "data/loader.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "data/sample_order.h"
#include "lockstep/error.h"
#include "lockstep/trace.h"

namespace lockstep::data {
namespace {

constexpr int kCallersSlots = 2;
/// A micro-batch is divided into as many parts as possible that have at least this many samples. Taking a part costs
/// two locks, which is cheap compared with reading even the smallest samples.
constexpr std::int64_t kLeastSamplesOfPart = 8;

}  // namespace

struct Loader::State {
  struct Slot {
    std::unique_ptr<Memory> memory;
    std::vector<std::byte> own_memory;         // without a backend
    std::vector<std::span<std::byte>> fields;  // one per field: (capacity, shape)
    Batch batch;
    std::size_t packed_bytes = 0;  // of the packed field that are in use so far; accessed through std::atomic_ref
    int n_unfinished = 0;          // parts of the micro-batch that is being read into it
    std::int64_t ready_micro_batch = -1;  // the micro-batch that was read into it last
    std::exception_ptr error;             // why it could not be read; null if it was
    int part_of_error = 0;  // the lowest part with an error, so that any number of readers report the same error
  };
  /// The samples of a micro-batch.
  struct Samples {
    std::int64_t step = 0, epoch = 0;
    std::int64_t first = 0, n = 0;  // positions in the epoch's order
    int n_parts() const { return static_cast<int>(std::max<std::int64_t>(1, n / kLeastSamplesOfPart)); }
  };
  struct Part {
    std::int64_t micro_batch = 0;
    int number = 0;
    Samples of;
  };
  struct Order {
    std::int64_t epoch = -1;
    bool is_being_computed = false;
    std::vector<std::uint32_t> samples;
  };

  std::shared_ptr<const Dataset> set;
  std::vector<Field> fields;
  LoaderOptions options;
  int packed = -1, place = -1;  // the indices of the packed field and of the field with its offsets; -1: there is none
  std::vector<std::int32_t> classes;  // the class of each sample; empty if the loader does not balance classes
  std::int64_t epoch_samples = 0, epoch_steps = 0;
  std::int64_t n_micro_batches = 0;  // in all; -1: endless

  std::mutex mutex;
  std::condition_variable slot_free, micro_batch_ready, order_ready;
  std::vector<Slot> slots;
  /// Sample orders of the epochs that the ring buffer may span. Epoch e is in orders[e % orders.size()].
  std::vector<Order> orders;
  std::int64_t next_micro_batch = 0;  // the micro-batch of the next part that a reader takes
  int next_part = 0;                  // the number of this part
  std::int64_t first_in_use = 0;      // the caller's oldest micro-batch, once it has one; all earlier ones are free
  std::int64_t n_returned = 0;        // micro-batches returned to the caller
  bool stopping = false;
  double wait_seconds = 0;
  LoaderUsage finished;             // the work that readers have finished
  int n_busy = 0;                   // busy readers
  Clock::duration sum_of_begins{};  // the sum of the times at which they took their parts
  std::vector<std::thread> threads;

  Slot& slot_of(std::int64_t micro_batch) { return slots[static_cast<std::size_t>(micro_batch) % slots.size()]; }

  State(std::shared_ptr<const Dataset> dataset, const LoaderOptions& loader_options)
      : set(std::move(dataset)), fields(set->fields()), options(loader_options) {
    const LoaderOptions& o = options;
    require(o.global_batch > 0 && o.n_micro_batches > 0 && o.first_shard >= 0 && o.shard_stride >= 0 &&
                o.first_shard + (o.n_micro_batches - 1) * o.shard_stride < o.total_shards && o.readers > 0 &&
                o.prefetch > 0 && o.first_step >= 0 && o.max_samples >= 0,
            ErrorCode::internal, "the options of the loader are not possible");
    const std::int64_t n_largest = micro_batch_of(o.global_batch, 0).size();
    require(o.capacity >= n_largest, ErrorCode::internal, "a capacity of {} samples does not hold {}, a micro-batch",
            o.capacity, n_largest);
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (fields[i].packing == Packing::packed) packed = static_cast<int>(i);
      if (fields[i].packing == Packing::place) place = static_cast<int>(i);
    }
    require((packed < 0) == (place < 0) &&
                (packed < 0 || static_cast<std::size_t>(o.capacity) *
                                       fields[static_cast<std::size_t>(packed)].size_bytes() / kPackedUnitBytes <=
                                   static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())),
            ErrorCode::internal, "a packed field of {} samples has no places", o.capacity);
    const std::int64_t n = set->info().n_samples;
    epoch_samples = o.max_samples > 0 ? std::min(o.max_samples, n) : n;
    epoch_steps = steps_per_epoch(epoch_samples, o.global_batch, o.drop_last);
    require(epoch_steps > 0, ErrorCode::data_range,
            "{} samples of {} do not fill one global batch of {}: use a smaller train.global_batch, or data.drop_last: "
            "false",
            epoch_samples, set->info().path, o.global_batch);
    if (o.balance) {
      classes = set->classes();
      require(std::ranges::any_of(classes, [](std::int32_t number) { return number >= 0; }), ErrorCode::config_conflict,
              "data.balance draws classes equally often, but the samples of {} have no classes", set->info().path);
    }
    n_micro_batches = o.last_step < 0 ? -1 : std::max<std::int64_t>(0, o.last_step - o.first_step) * o.n_micro_batches;

    slots.resize(static_cast<std::size_t>(o.prefetch + kCallersSlots));
    for (Slot& slot : slots) take_memory(slot);
    const std::int64_t epoch_micro_batches = epoch_steps * o.n_micro_batches;
    orders.resize(static_cast<std::size_t>((o.prefetch + epoch_micro_batches) / epoch_micro_batches) + 1);
    try {
      for (int i = 0; i < o.readers; ++i) threads.emplace_back([this] { run_reader(); });
    } catch (...) {
      stop();
      throw;
    }
  }

  void take_memory(Slot& slot) {
    const auto capacity = static_cast<std::size_t>(options.capacity);
    const std::size_t size_bytes = capacity * sample_bytes(fields);
    if (options.backend != nullptr)
      slot.memory = options.backend->allocate_host(size_bytes, "batches read ahead");
    else
      slot.own_memory.resize(size_bytes);
    std::byte* at = slot.memory ? static_cast<std::byte*>(slot.memory->data()) : slot.own_memory.data();
    slot.fields.resize(fields.size());
    slot.batch.fields.resize(fields.size());
    // Fields with the widest elements come first, so that each is aligned without padding.
    for (const std::size_t width : {8, 4, 2, 1})
      for (std::size_t i = 0; i < fields.size(); ++i) {
        if (lockstep::size_bytes(fields[i].dtype) != width) continue;
        slot.fields[i] = {at, capacity * fields[i].size_bytes()};
        slot.batch.fields[i] = slot.fields[i];
        at += slot.fields[i].size();
      }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    slot_free.notify_all();
    order_ready.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  void run_reader() {
    const trace::ThreadRow row("reader");
    std::vector<std::span<std::byte>> places(fields.size());
    std::unique_lock lock(mutex);
    const auto n_slots = static_cast<std::int64_t>(slots.size());
    while (true) {
      slot_free.wait(lock, [&] {
        return stopping || next_micro_batch == n_micro_batches || next_micro_batch < first_in_use + n_slots;
      });
      if (stopping || next_micro_batch == n_micro_batches) return;
      const Part part = take_part();
      const Clock::time_point begin = Clock::now();
      ++n_busy;
      sum_of_begins += begin.time_since_epoch();
      lock.unlock();
      std::exception_ptr error;
      try {
        read_part(part, places);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      --n_busy;
      sum_of_begins -= begin.time_since_epoch();
      finished.read_seconds += seconds_since(begin);
      finished.n_samples += shard_of(part.of.n, part.number, part.of.n_parts()).size();
      finish_part(part, error);
    }
  }

  /// Positions in a global batch.
  Shard micro_batch_of(std::int64_t batch, int number) const {
    const LoaderOptions& o = options;
    const Shard shard = shard_of(batch, o.first_shard + number * o.shard_stride, o.total_shards);
    if (o.shard_stride > 0) return shard;
    const Shard part = shard_of(shard.size(), number, o.n_micro_batches);
    return {shard.begin + part.begin, shard.begin + part.end};
  }

  Samples samples_of(std::int64_t micro_batch) const {
    const std::int64_t step = options.first_step + micro_batch / options.n_micro_batches;
    const std::int64_t begin = step % epoch_steps * options.global_batch;
    const std::int64_t batch = std::min(options.global_batch, epoch_samples - begin);
    const Shard own = micro_batch_of(batch, static_cast<int>(micro_batch % options.n_micro_batches));
    return {.step = step, .epoch = step / epoch_steps, .first = begin + own.begin, .n = own.size()};
  }

  /// The caller holds the lock, and the slot of next_micro_batch is free.
  Part take_part() {
    const Part part{.micro_batch = next_micro_batch, .number = next_part, .of = samples_of(next_micro_batch)};
    const int n_parts = part.of.n_parts();
    if (part.number == 0) {
      Slot& slot = slot_of(part.micro_batch);
      slot.n_unfinished = slot.part_of_error = n_parts;
      slot.error = nullptr;
      slot.batch.n_samples = part.of.n;
      slot.packed_bytes = 0;
    }
    if (++next_part == n_parts) {
      next_part = 0;
      ++next_micro_batch;
    }
    return part;
  }

  /// The caller holds the lock.
  void finish_part(const Part& part, std::exception_ptr error) {
    Slot& slot = slot_of(part.micro_batch);
    if (error && part.number < slot.part_of_error) {
      slot.error = std::move(error);
      slot.part_of_error = part.number;
    }
    if (--slot.n_unfinished > 0) return;
    slot.batch.packed_bytes = slot.packed_bytes;
    slot.ready_micro_batch = part.micro_batch;
    micro_batch_ready.notify_all();
  }

  /// The sample order of an epoch. The first reader that needs it computes it while the others wait. Null: samples are
  /// read in stored order.
  const std::uint32_t* order_of(std::int64_t epoch) {
    if (!options.shuffle && !options.balance) return nullptr;
    Order& order = orders[static_cast<std::size_t>(epoch) % orders.size()];
    std::unique_lock lock(mutex);
    if (order.epoch != epoch) {
      order.epoch = epoch;
      order.is_being_computed = true;
      lock.unlock();
      // The order is that of the whole set. With max_samples, an epoch uses its first samples.
      std::vector<std::uint32_t> samples;
      std::exception_ptr error;
      try {
        const auto number = static_cast<std::uint32_t>(epoch);
        samples = options.balance ? balanced_order(options.seed, number, classes, options.shuffle)
                                  : epoch_order(options.seed, number, set->info().n_samples, true);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      order.samples = std::move(samples);
      order.is_being_computed = false;
      order_ready.notify_all();
      if (error) std::rethrow_exception(error);
    }
    order_ready.wait(lock, [&] { return !order.is_being_computed; });
    require(!order.samples.empty(), ErrorCode::out_of_memory, "the sample order of epoch {} could not be computed",
            epoch);
    return order.samples.data();
  }

  /// `places` is a buffer for the places of one sample in the fields of the slot.
  void read_part(const Part& part, std::span<std::span<std::byte>> places) {
    const Samples& of = part.of;
    const trace::Span span(trace::Kind::read, "read for step", of.step + 1);
    Slot& slot = slot_of(part.micro_batch);
    const Shard mine = shard_of(of.n, part.number, of.n_parts());
    const std::uint32_t* order = mine.size() > 0 ? order_of(of.epoch) : nullptr;
    for (std::int64_t i = mine.begin; i < mine.end; ++i) {
      const auto position = static_cast<std::size_t>(of.first + i);
      const std::uint32_t sample = order ? order[position] : static_cast<std::uint32_t>(position);
      for (std::size_t f = 0; f < fields.size(); ++f) {
        const std::size_t size_bytes = fields[f].size_bytes();
        places[f] = slot.fields[f].subspan(static_cast<std::size_t>(i) * size_bytes, size_bytes);
      }
      if (packed >= 0) place_packed(slot, sample, static_cast<std::uint32_t>(of.epoch), places);
      set->read(sample, static_cast<std::uint32_t>(of.epoch), places);
    }
    set->require_unchanged();
    if (part.number + 1 < of.n_parts()) return;
    for (std::size_t f = 0; f < fields.size(); ++f) {
      if (fields[f].packing == Packing::packed) continue;
      std::ranges::fill(slot.fields[f].subspan(static_cast<std::size_t>(of.n) * fields[f].size_bytes()),
                        std::byte{fields[f].padding_byte});
    }
  }

  /// Reserves the next bytes of the packed field. The order of the samples there depends on the readers. The results of
  /// a step do not, since each sample is found by its offset.
  void place_packed(Slot& slot, std::int64_t sample, std::uint32_t epoch, std::span<std::span<std::byte>> places) {
    const auto f = static_cast<std::size_t>(packed);
    const std::size_t n_bytes = set->packed_bytes(sample, epoch);
    require(n_bytes <= fields[f].max_bytes, ErrorCode::internal, "sample {} has {} bytes, but the largest has {}",
            sample, n_bytes, fields[f].max_bytes);
    const std::size_t begin =
        std::atomic_ref(slot.packed_bytes).fetch_add(Field::packed_bytes(n_bytes), std::memory_order_relaxed);
    places[f] = slot.fields[f].subspan(begin, n_bytes);
    const auto unit = static_cast<std::int32_t>(begin / kPackedUnitBytes);
    std::memcpy(places[static_cast<std::size_t>(place)].data(), &unit, sizeof(unit));
  }
};

Loader::Loader(std::shared_ptr<const Dataset> set, const LoaderOptions& options)
    : state_(std::make_unique<State>(std::move(set), options)) {}

Loader::~Loader() { state_->stop(); }

std::int64_t Loader::steps_per_epoch(std::int64_t n_samples, std::int64_t global_batch, bool drop_last) {
  return drop_last ? n_samples / global_batch : (n_samples + global_batch - 1) / global_batch;
}

std::size_t Loader::buffer_bytes(std::span<const Field> fields, std::int64_t capacity, int prefetch) {
  return static_cast<std::size_t>(prefetch + kCallersSlots) * static_cast<std::size_t>(capacity) * sample_bytes(fields);
}

const Batch& Loader::next() {
  State& s = *state_;
  require(s.n_returned != s.n_micro_batches, ErrorCode::internal,
          "the loader has only {} micro-batches, and another one was requested", s.n_micro_batches);
  const trace::Span span(trace::Kind::wait, "data");
  const Clock::time_point begin = Clock::now();
  std::unique_lock lock(s.mutex);
  s.first_in_use = std::max<std::int64_t>(0, s.n_returned - 1);
  s.slot_free.notify_all();
  State::Slot& slot = s.slot_of(s.n_returned);
  s.micro_batch_ready.wait(lock, [&] { return slot.ready_micro_batch == s.n_returned; });
  s.wait_seconds += seconds_since(begin);
  if (slot.error) std::rethrow_exception(slot.error);
  ++s.n_returned;
  return slot.batch;
}

double Loader::wait_seconds() const { return state_->wait_seconds; }

LoaderUsage Loader::usage() const {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  LoaderUsage usage = s.finished;
  const Clock::duration unfinished = s.n_busy * Clock::now().time_since_epoch() - s.sum_of_begins;
  usage.busy_seconds = usage.read_seconds + std::chrono::duration<double>(unfinished).count();
  usage.wait_seconds = s.wait_seconds;
  return usage;
}

}  // namespace lockstep::data
