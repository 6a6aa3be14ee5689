#include "train/batch_fit.h"

#include <algorithm>
#include <limits>

#include "lockstep/error.h"

namespace lockstep::train {

namespace {

constexpr std::int64_t kMultiple = 8;  // batches are multiples of this: the granularity of tensor cores and of vectors

std::int64_t rounded(std::int64_t batch) { return batch < kMultiple ? batch : batch / kMultiple * kMultiple; }
std::int64_t quotient_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Only activations grow with the batch, so a straight line through two batches predicts which batch needs `room`
/// bytes. Returns 1 to `limit`.
template <typename TotalOf>
std::int64_t first_estimate(const TotalOf& total_of, double room, std::int64_t limit) {
  const auto through = [&](std::int64_t small) {
    const double fixed_and_small = total_of(small),
                 per_sample = (total_of(2 * small) - fixed_and_small) / static_cast<double>(small);
    const double more = (room - fixed_and_small) / std::max(1.0, per_sample);
    if (more > static_cast<double>(limit)) return limit;
    return std::clamp<std::int64_t>(small + static_cast<std::int64_t>(more), 1, limit);
  };
  try {
    return through(std::min<std::int64_t>(8, limit));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_supported) throw;
    return through(1);
  }
}

}  // namespace

std::int64_t batch_that_fits(const Config& config, const tasks::Task& task, int ranks, Backend& backend,
                             const comm::Topology& topology, std::size_t memory_bytes, std::int64_t limit) {
  const double room = kUsableMemory * static_cast<double>(memory_bytes);
  const auto total_of = [&](std::int64_t batch) {
    Config other = config;
    other.train.accumulate = 1;
    other.train.batch_per_rank = config.train.micro_batches > 0 ? 0 : batch;
    other.train.global_batch = config.train.micro_batches * batch;
    const StepPlan plan(other, task, batch_shape(other, 0, ranks), backend, topology);
    return static_cast<double>(memory_of_device(plan.memory(), backend.memory_space()));
  };
  // An op may refuse a batch that would fit, for example a convolution with too many elements.
  const auto needed_by = [&](std::int64_t batch) {
    try {
      return total_of(batch);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_supported || batch == 1) throw;
      return std::numeric_limits<double>::infinity();
    }
  };
  limit = std::max<std::int64_t>(1, limit);
  std::int64_t batch = rounded(first_estimate(total_of, room, limit));
  double needed = needed_by(batch);
  std::int64_t too_large = 0;  // 0: no such batch is known
  while (batch > 1 && needed > room) {
    too_large = batch;
    batch = rounded(std::min(batch - 1, batch * 19 / 20));
    needed = needed_by(batch);
  }
  while (too_large == 0 && needed <= room) {  // the estimate from two small batches may have been too low
    const double per_sample = needed / static_cast<double>(batch);
    const std::int64_t larger =
        rounded(std::min(limit, batch + static_cast<std::int64_t>((room - needed) / per_sample)));
    if (larger <= batch) break;
    const double needed_by_larger = needed_by(larger);
    if (needed_by_larger > room) {
      too_large = larger;
    } else {
      batch = larger;
      needed = needed_by_larger;
    }
  }
  while (too_large - batch > kMultiple) {  // the steps of 5 % above may have been too large
    const std::int64_t middle = rounded((batch + too_large) / 2);
    (needed_by(middle) <= room ? batch : too_large) = middle;
  }
  return batch > 1 || needed <= room ? batch : 0;
}

std::size_t memory_of_device(const MemoryReport& memory, MemorySpace space) {
  const std::size_t of_host = memory.loader + memory.checkpoint + memory.node_buffers + memory.offloaded;
  return memory.total() - (space == MemorySpace::device ? of_host : 0);
}

void require_host_memory(const MemoryReport& memory, std::size_t there) {
  const std::size_t needed = memory.total() - memory_of_device(memory, MemorySpace::device);
  const auto gib = [](std::size_t size_bytes) { return static_cast<double>(size_bytes) / (1 << 30); };
  require(
      needed <= there, ErrorCode::out_of_memory,
      "a rank needs {:.1f} GiB of host memory, {:.1f} of them for the copy that a checkpoint writes, but {:.1f} GiB "
      "are free for it: request more memory for the job (sbatch --mem), or use fewer ranks per node",
      gib(needed), gib(memory.checkpoint), gib(there));
}

bool has_automatic_batch(const Config& config) {
  const Config::Train& t = config.train;
  return (t.batch_per_rank == Config::kAuto && t.global_batch == 0) || t.accumulate == Config::kAuto;
}

void resolve_batch(Config& config, int ranks, std::int64_t fits, std::int64_t n_samples) {
  Config::Train& t = config.train;
  require(fits > 0 || !has_automatic_batch(config), ErrorCode::out_of_memory,
          "not even a step with one sample per rank fits into {:.0f} % of the device's memory{}: use a smaller model, "
          "smaller samples, precision=bf16 or train.shard=optimizer",
          100 * kUsableMemory,
          config.evaluation.batch_per_rank > 1
              ? fmt::format(" beside an evaluation with {} samples at once (evaluation.batch_per_rank)",
                            config.evaluation.batch_per_rank)
              : "");
  if (t.accumulate == Config::kAuto) {
    const std::int64_t most = t.batch_per_rank > 0 ? t.batch_per_rank : fits;
    const bool is_free = t.global_batch > 0 && t.micro_batches == 0;
    t.accumulate = is_free ? static_cast<int>(quotient_up(quotient_up(t.global_batch, ranks), most)) : 1;
  }
  if (t.batch_per_rank != Config::kAuto) return;
  t.batch_per_rank = 0;
  if (t.global_batch > 0) return;
  const std::int64_t of_data = n_samples / (std::int64_t{ranks} * t.accumulate);
  require(of_data > 0, ErrorCode::data_range,
          "{}{} samples are fewer than {} ranks x {} accumulated micro-batches: use fewer ranks or a smaller "
          "train.accumulate",
          config.places({"train.batch_per_rank", "train.accumulate"}), n_samples, ranks, t.accumulate);
  t.batch_per_rank = rounded(std::min(fits, of_data));
}

}  // namespace lockstep::train
