#include "data/sample_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/error.h"
#include "lockstep/philox.h"

namespace lockstep::data {

std::vector<std::uint32_t> epoch_order(std::uint32_t seed, std::uint32_t epoch, std::int64_t n_samples, bool shuffle) {
  require(n_samples >= 0 && n_samples <= kMaxSamples, ErrorCode::internal,
          "{} samples are too many: they cannot be numbered with 32 bits", n_samples);
  std::vector<std::uint32_t> order(static_cast<std::size_t>(n_samples));
  std::iota(order.begin(), order.end(), 0u);
  if (!shuffle) return order;
  const Philox philox(seed, RandomPurpose::shuffle, 0, epoch);
  std::uint64_t block_index = ~std::uint64_t{0};
  std::array<std::uint32_t, 4> block{};
  for (std::size_t i = order.size(); i-- > 1;) {
    if (i / 4 != block_index) block = philox.block(block_index = i / 4);
    std::swap(order[i], order[Philox::below(block[i % 4], static_cast<std::uint32_t>(i + 1))]);
  }
  return order;
}

Shard shard_of(std::int64_t batch, int rank, int size) {
  require(batch >= 0 && size > 0 && rank >= 0 && rank < size, ErrorCode::internal,
          "there is no shard {} of {} in {} samples", rank, size, batch);
  const std::int64_t base = batch / size, more = batch % size;
  const std::int64_t begin = rank * base + std::min<std::int64_t>(rank, more);
  return {begin, begin + base + (rank < more ? 1 : 0)};
}

Shard shards_of(std::int64_t batch, int first, int n_shards, int size) {
  return {shard_of(batch, first, size).begin, shard_of(batch, first + n_shards - 1, size).end};
}

}  // namespace lockstep::data
