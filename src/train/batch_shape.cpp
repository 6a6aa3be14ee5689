#include "train/batch_shape.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "comm/sum.h"
#include "lockstep/error.h"

namespace lockstep::train {

int BatchShape::shards_of(int of_rank) const {
  const auto r = static_cast<std::size_t>(of_rank);
  return first_shard[r + 1] - first_shard[r];
}

data::Shard BatchShape::samples(int of_rank, int micro_batch) const {
  if (is_tree) return data::shard_of(global_batch, shard_of(of_rank, micro_batch), n_shards());
  const data::Shard shard = data::shard_of(global_batch, shard_of(of_rank, 0), n_shards());
  const data::Shard part = data::shard_of(shard.size(), micro_batch, n_micro_batches);
  return {shard.begin + part.begin, shard.begin + part.end};
}

std::int64_t BatchShape::samples_of_rank() const {
  std::int64_t sum = 0;
  for (int m = 0; m < n_micro_batches; ++m) sum += micro_batch_size(m);
  return sum;
}

std::int64_t BatchShape::global_micro_batch_size(int number) const {
  if (is_tree) return micro_batch_size(number);
  std::int64_t sum = 0;
  for (int r = 0; r < ranks; ++r) sum += samples(r, number).size();
  return sum;
}

// The first ranks and the first micro-batches are the largest, the last ones the smallest (data::shard_of).
std::int64_t BatchShape::largest_micro_batch() const { return samples(0, 0).size(); }
std::int64_t BatchShape::smallest_micro_batch() const {
  return samples(ranks - 1, is_tree ? shards_of(ranks - 1) - 1 : n_micro_batches - 1).size();
}

namespace {

/// The tree over all micro-batches, divided at rank boundaries.
comm::GroupedOrder order_of(const BatchShape& shape) {
  std::vector<int> sizes;
  for (int r = 0; r < shape.ranks; ++r) sizes.push_back(shape.shards_of(r));
  std::optional<comm::GroupedOrder> order = comm::group(shape.order(), sizes);
  require(order.has_value(), ErrorCode::internal, "the micro-batches of a rank are not a subtree of the sum");
  return std::move(*order);
}

}  // namespace

SumOrder BatchShape::order() const { return comm::tree_order(n_shards()); }
SumOrder BatchShape::order_in_rank() const { return order_of(*this).inner[static_cast<std::size_t>(rank)]; }
SumOrder BatchShape::order_over_ranks() const {
  if (is_interleaved) return {comm::tree_order(ranks).merges, /*has_rounds=*/true};
  return is_tree ? order_of(*this).outer : SumOrder{};
}

namespace {

/// train.micro_batches: micro-batches are shards, and ranks take subtrees of them.
BatchShape tree_shape(const Config& config, int rank, int ranks) {
  require(config.comm.gradients == "fp32", ErrorCode::config_conflict,
          "{}comm.gradients={} rounds what a node sends, so the bits depend on the nodes: set comm.gradients=fp32 with "
          "train.micro_batches",
          config.places({"comm.gradients", "train.micro_batches"}), config.comm.gradients);
  const int n_shards = config.train.micro_batches;
  require(ranks <= n_shards, ErrorCode::config_conflict,
          "{}train.micro_batches={} is less than one for each of {} ranks: use at most {} ranks, or more micro-batches",
          config.places({"train.micro_batches"}), n_shards, ranks, n_shards);
  BatchShape shape{.global_batch = config.train.global_batch, .rank = rank, .ranks = ranks, .is_tree = true};
  shape.is_interleaved = config.train.shards_gradients() && ranks > 1;
  if (shape.is_interleaved && n_shards % ranks != 0) {
    std::vector<int> possible;
    for (int n = 1; n <= n_shards; ++n)
      if (n_shards % n == 0) possible.push_back(n);
    fail(ErrorCode::config_conflict,
         "{}with train.shard={}, every rank runs as many of the train.micro_batches={}, which {} ranks cannot: "
         "use {} ranks, or train.micro_batches={}",
         config.places({"train.micro_batches", "train.shard"}), config.train.shard, n_shards, ranks,
         fmt::join(possible, " or "), (n_shards + ranks - 1) / ranks * ranks);
  }
  shape.first_shard = {0};
  const std::vector<int> sizes = shape.is_interleaved ? std::vector(static_cast<std::size_t>(ranks), n_shards / ranks)
                                                      : comm::subtree_sizes(n_shards, ranks);
  for (const int size : sizes) shape.first_shard.push_back(shape.n_shards() + size);
  shape.n_micro_batches = shape.shards_of(rank);
  return shape;
}

}  // namespace

std::int64_t configured_global_batch(const Config& config, int ranks) {
  const Config::Train& t = config.train;
  if (t.global_batch > 0) return t.global_batch;
  return std::max<std::int64_t>(0, t.batch_per_rank) * ranks * std::max(1, t.accumulate);
}

BatchShape batch_shape(const Config& config, int rank, int ranks) {
  if (config.train.micro_batches > 0) return tree_shape(config, rank, ranks);
  const int n_micro_batches = config.train.accumulate;
  BatchShape shape{.global_batch = configured_global_batch(config, ranks),
                   .rank = rank,
                   .ranks = ranks,
                   .n_micro_batches = n_micro_batches};
  shape.first_shard.resize(static_cast<std::size_t>(ranks) + 1);
  std::iota(shape.first_shard.begin(), shape.first_shard.end(), 0);
  require(shape.smallest_micro_batch() >= 1, ErrorCode::config_conflict,
          "{}a global batch of {} samples cannot be divided among {} ranks x {} accumulated micro-batches: use at "
          "most {} ranks, or a larger train.global_batch",
          config.places({"train.global_batch", "train.batch_per_rank", "train.accumulate"}), shape.global_batch, ranks,
          n_micro_batches, std::max<std::int64_t>(1, shape.global_batch / n_micro_batches));
  return shape;
}

}  // namespace lockstep::train
