// Reads batches ahead of the step, with threads and pread, into buffers that are reused.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "data/dataset.h"
#include "lockstep/backend.h"

namespace lockstep::data {

/// One rank's micro-batch of a global batch, in host memory.
struct Batch {
  std::int64_t n_samples = 0;                 // this rank's, may be less than the capacity at an epoch's end
  std::span<const std::uint8_t> images;       // (capacity, H, W, C); beyond n_samples zero
  std::span<const std::int32_t> labels;       // (capacity); beyond n_samples -1
  std::span<const std::uint32_t> sample_ids;  // (capacity); position in the file
};

/// What the loader gives: for each (epoch, step) in turn the samples at positions
/// [step * global_batch, min((step+1) * global_batch, n)) of the epoch's order, of which this rank takes its shard;
/// with n_micro_batches > 1 (accumulation) the shard is cut again into that many consecutive micro-batches, next()
/// giving one each.
struct LoaderOptions {
  std::int64_t global_batch = 0;
  std::int64_t capacity = 0;  // samples of the largest micro-batch
  int n_micro_batches = 1;
  int rank = 0, size = 1;
  int n_shards = 1;  // `rank` and `size` count shards of the global batch, of which this rank takes so many
  std::uint32_t seed = 0;
  bool shuffle = true;
  bool drop_last = true;         // a last batch smaller than global_batch is left out of the epoch
  int readers = 1;               // threads
  int prefetch = 3;              // micro-batches ready ahead
  std::int64_t first_step = 0;   // global step to begin at: epoch = step / steps_per_epoch (resuming inside an epoch)
  std::int64_t last_step = -1;   // exclusive; -1: endless
  std::int64_t max_samples = 0;  // an epoch is the first so many of the order; 0: all
  Backend* backend = nullptr;    // in whose host memory batches lie; null: the process's own
};

class Loader {
 public:
  Loader(std::shared_ptr<const ImageSet> set, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  static std::int64_t steps_per_epoch(std::int64_t n_samples, std::int64_t global_batch, bool drop_last);

  /// The next micro-batch; valid until the second call after it, since it may still be on its way to a device. Blocks
  /// until it is read; the wait is added to wait_seconds(). Rethrows what a reader thread met.
  const Batch& next();
  double wait_seconds() const;  // so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::data
