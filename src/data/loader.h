// Reads batches ahead of the step, with threads and pread, into buffers that are reused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/dataset.h"
#include "lockstep/backend.h"

namespace lockstep::data {

/// One rank's micro-batch of a global batch, in host memory.
struct Batch {
  std::int64_t n_samples = 0;                      // may be less than the capacity at an epoch's end
  std::vector<std::span<const std::byte>> fields;  // as Dataset::fields(): (capacity, shape), padded after n_samples
  std::size_t packed_bytes = 0;                    // of the packed field, if there is one: what its samples take up

  /// The bytes of the first `n` places in a field. `n` includes all samples and possibly padding.
  std::size_t bytes_of(const Field& field, std::int64_t n) const {
    return field.packing == Packing::packed ? packed_bytes : static_cast<std::size_t>(n) * field.size_bytes();
  }
};

/// What the loader returns: for each step in turn, the samples at positions [step * global_batch, min((step+1) *
/// global_batch, n)) of the epoch's order. The batch is divided into total_shards shards. Micro-batch i of this
/// rank is shard first_shard + i * shard_stride; with a stride of 0 (accumulation), first_shard is divided again into
/// n_micro_batches consecutive ones. Each call of next() returns one.
struct LoaderOptions {
  std::int64_t global_batch = 0;
  std::int64_t capacity = 0;  // samples of the largest micro-batch
  int n_micro_batches = 1;
  int first_shard = 0, shard_stride = 0, total_shards = 1;
  std::uint32_t seed = 0;
  bool shuffle = true;
  bool balance = false;          // draw samples of all classes of the set equally often (balanced_order)
  bool drop_last = true;         // a last batch smaller than global_batch is left out of the epoch
  int readers = 1;               // threads, each of which reads a part of a micro-batch at a time
  int prefetch = 3;              // micro-batches ready ahead
  std::int64_t first_step = 0;   // step to begin at: epoch = step / steps_per_epoch (resuming inside an epoch)
  std::int64_t last_step = -1;   // exclusive; -1: endless
  std::int64_t max_samples = 0;  // an epoch is this many samples, the first of the order; 0: all
  Backend* backend = nullptr;    // allocates the host memory of the batches; null: ordinary memory
};

/// What the readers and the caller have done so far.
struct LoaderUsage {
  double wait_seconds = 0;     // of the caller, in next()
  double busy_seconds = 0;     // of all readers together, between taking a part of a batch and having read it
  double read_seconds = 0;     // the same, of the parts that are finished
  std::int64_t n_samples = 0;  // in these
};

class Loader {
 public:
  Loader(std::shared_ptr<const Dataset> set, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  static std::int64_t steps_per_epoch(std::int64_t n_samples, std::int64_t global_batch, bool drop_last);
  /// The host memory of the buffers.
  static std::size_t buffer_bytes(std::span<const Field> fields, std::int64_t capacity, int prefetch);

  /// The next micro-batch. It stays valid until the second call after this one, since it may still be on its way to a
  /// device. Blocks until the micro-batch is read, and adds the time to wait_seconds(). Rethrows the exception of a
  /// reader thread.
  const Batch& next();
  double wait_seconds() const;  // so far
  LoaderUsage usage() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::data
