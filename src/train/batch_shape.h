// How a global batch is divided over ranks and micro-batches.
#pragma once

#include <cstdint>
#include <vector>

#include "data/sample_order.h"
#include "lockstep/communicator.h"
#include "lockstep/config.h"

namespace lockstep::train {

/// The global batch is divided over ranks, and then over the micro-batches that a rank runs one after another.
///
/// train.accumulate: a rank has one shard, which is divided into this many micro-batches.
/// train.micro_batches: each shard is one micro-batch, whatever the number of ranks. A rank has several shards, a
/// subtree of the binary tree that sums them. With train.shard=gradients, rank r of n has the shards r, r+n, ..., so
/// that the ranks together run one shard after another: the sum then needs few open entries (SumRound).
struct BatchShape {
  std::int64_t global_batch = 0;
  int rank = 0, ranks = 1, n_micro_batches = 1;  // micro-batches of this rank
  bool is_tree = false;                          // train.micro_batches
  bool is_interleaved = false;                   // with train.shard=gradients
  std::vector<int> first_shard{};  // of each rank, if they are consecutive; the last element is n_shards()

  int n_shards() const { return first_shard.back(); }
  int shards_of(int of_rank) const;
  /// is_tree: that of a micro-batch.
  int shard_of(int of_rank, int micro_batch) const {
    return is_interleaved ? micro_batch * ranks + of_rank
                          : first_shard[static_cast<std::size_t>(of_rank)] + micro_batch;
  }
  /// From a micro-batch's shard to that of the rank's next one; 0: micro-batches divide one shard.
  int shard_stride() const { return !is_tree ? 0 : is_interleaved ? ranks : 1; }
  int micro_batches_of_all() const { return is_tree ? n_shards() : ranks * n_micro_batches; }
  /// Positions in the global batch.
  data::Shard samples(int of_rank, int micro_batch) const;
  /// Samples in this rank's micro-batch `number`.
  std::int64_t micro_batch_size(int number) const { return samples(rank, number).size(); }
  std::int64_t samples_of_rank() const;  // in all of its micro-batches
  /// Samples of all ranks in micro-batch `number`, over which synchronised statistics are taken.
  std::int64_t global_micro_batch_size(int number) const;
  std::int64_t largest_micro_batch() const;  // over ranks and micro-batches
  std::int64_t smallest_micro_batch() const;

  SumOrder order() const;             // over all micro-batches; is_tree
  SumOrder order_in_rank() const;     // over this rank's micro-batches; is_tree, not interleaved
  SumOrder order_over_ranks() const;  // empty: any order will do
};

/// train.global_batch, or the batch that follows from train.batch_per_rank on this many ranks. 0: it is auto and not
/// known yet.
std::int64_t configured_global_batch(const Config& config, int ranks);
/// Throws config_conflict if the batch cannot be divided.
BatchShape batch_shape(const Config& config, int rank, int ranks);

}  // namespace lockstep::train
