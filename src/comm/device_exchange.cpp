#include "comm/device_exchange.h"

#include <algorithm>

#include "lockstep/bf16.h"

namespace lockstep::comm {

DeviceExchange::DeviceExchange(Backend& backend, int rank, const SumOrder& order, DType narrowest_wire)
    : order_(order),
      rank_(rank),
      n_ranks_(order.size()),
      sum_fp32_(backend.make(OrderedSumDescription{.dtype = DType::fp32})),
      sum_fp64_(backend.make(OrderedSumDescription{.dtype = DType::fp64})),
      incoming_(backend.allocate(incoming_shards_bytes(kChunkBytes, n_ranks_), "shards of other ranks")) {
  transfers_.reserve(2 * static_cast<std::size_t>(n_ranks_));
  open_.reserve(static_cast<std::size_t>(n_ranks_));
  if (narrowest_wire == DType::fp32) return;
  narrow_ = backend.make(CastDescription{.from = DType::fp32, .to = narrowest_wire});
  widen_ = backend.make(CastDescription{.from = narrowest_wire, .to = DType::fp32});
  rounded_ = backend.allocate(kChunkBytes / 2, "rounded gradients");
  rounded_incoming_ =
      backend.allocate(incoming_shards_bytes(kChunkBytes, n_ranks_) / 2, "rounded shards of other ranks");
}

std::size_t DeviceExchange::buffer_bytes(int n_ranks, DType narrowest_wire) {
  const std::size_t incoming = incoming_shards_bytes(kChunkBytes, n_ranks);
  return incoming + (narrowest_wire == DType::fp32 ? 0 : (incoming + kChunkBytes) / 2);
}

void DeviceExchange::all_reduce(const Slice& slice, PointToPoint& network, Stream& stream) {
  const std::size_t length = kChunkBytes / size_bytes(slice.dtype);
  for (std::size_t begin = 0; begin < slice.n_elements; begin += length) {
    const Chunk chunk{.data = static_cast<std::byte*>(slice.data) + begin * size_bytes(slice.dtype),
                      .n_elements = std::min(length, slice.n_elements - begin),
                      .dtype = slice.dtype,
                      .wire = slice.dtype == DType::fp32 ? slice.wire : slice.dtype};
    scatter(chunk, network, stream);
    sum_my_shard(chunk, stream);
    gather(chunk, network, stream);
  }
}

Range DeviceExchange::shard(const Chunk& chunk, int rank) const {
  return shard_of(chunk.n_elements, size_bytes(chunk.dtype), n_ranks_, rank);
}

std::byte* DeviceExchange::values(const Chunk& chunk, int rank) const {
  return chunk.data + shard(chunk, rank).begin * size_bytes(chunk.dtype);
}

std::byte* DeviceExchange::wire_data(const Chunk& chunk, int rank) const {
  if (!chunk.is_narrow()) return values(chunk, rank);
  return static_cast<std::byte*>(rounded_->data()) + shard(chunk, rank).begin * size_bytes(chunk.wire);
}

/// Where the copy of my shard from `rank` is received. The copies are adjacent.
std::byte* DeviceExchange::incoming(const Chunk& chunk, int rank) const {
  return static_cast<std::byte*>(incoming_->data()) +
         static_cast<std::size_t>(rank) * shard(chunk, rank_).n_elements * size_bytes(chunk.dtype);
}

void DeviceExchange::narrow(const Chunk& chunk, Range range, Stream& stream) {
  if (range.n_elements == 0) return;
  narrow_->apply({.source = reinterpret_cast<const float*>(chunk.data) + range.begin,
                  .target = static_cast<Bf16*>(rounded_->data()) + range.begin,
                  .n_elements = range.n_elements},
                 {}, stream);
}

void DeviceExchange::widen(const Chunk& chunk, Range range, Stream& stream) {
  if (range.n_elements == 0) return;
  widen_->apply({.source = static_cast<const Bf16*>(rounded_->data()) + range.begin,
                 .target = reinterpret_cast<float*>(chunk.data) + range.begin,
                 .n_elements = range.n_elements},
                {}, stream);
}

void DeviceExchange::scatter(const Chunk& chunk, PointToPoint& network, Stream& stream) {
  const std::size_t n_mine = shard(chunk, rank_).n_elements, mine_bytes = n_mine * size_bytes(chunk.wire);
  std::byte* const arriving = chunk.is_narrow() ? static_cast<std::byte*>(rounded_incoming_->data())
                                                : static_cast<std::byte*>(incoming_->data());
  if (chunk.is_narrow()) narrow(chunk, {0, chunk.n_elements}, stream);
  transfers_.clear();
  for (int peer = 0; peer < n_ranks_; ++peer) {
    if (peer == rank_) continue;
    const std::size_t theirs_bytes = shard(chunk, peer).n_elements * size_bytes(chunk.wire);
    if (theirs_bytes > 0) transfers_.push_back({Transfer::Direction::send, peer, wire_data(chunk, peer), theirs_bytes});
    if (mine_bytes > 0)
      transfers_.push_back(
          {Transfer::Direction::receive, peer, arriving + static_cast<std::size_t>(peer) * mine_bytes, mine_bytes});
  }
  network.transfer(transfers_, stream);
  if (!chunk.is_narrow() || n_mine == 0) return;
  // One cast widens all of them. The slot of this rank contains old data, which is not read.
  widen_->apply({.source = rounded_incoming_->data(),
                 .target = incoming_->data(),
                 .n_elements = static_cast<std::size_t>(n_ranks_) * n_mine},
                {}, stream);
  widen(chunk, shard(chunk, rank_), stream);  // rounded like the shards that were received
}

void DeviceExchange::sum_my_shard(const Chunk& chunk, Stream& stream) {
  const Range mine = shard(chunk, rank_);
  if (mine.n_elements == 0) return;
  OrderedSum& sum = chunk.dtype == DType::fp64 ? *sum_fp64_ : *sum_fp32_;
  open_.clear();
  for (int source = 0; source < n_ranks_; ++source) {
    std::byte* const value = source == rank_ ? values(chunk, source) : incoming(chunk, source);
    const auto n_merged = static_cast<std::size_t>(order_.merges[static_cast<std::size_t>(source)]);
    const bool is_last = source + 1 == n_ranks_;
    if (n_merged == 0 && !is_last) {
      open_.push_back(value);
      continue;
    }
    // A sum overwrites its last source; the final one is the result.
    std::byte* const target = is_last ? values(chunk, rank_) : value;
    sum.apply({.value = value,
               .open = std::span<const void* const>(open_).last(n_merged),
               .target = target,
               .n_elements = mine.n_elements},
              {}, stream);
    open_.resize(open_.size() - n_merged);
    open_.push_back(target);
  }
  if (!chunk.is_narrow()) return;
  narrow(chunk, mine, stream);
  widen(chunk, mine, stream);
}

void DeviceExchange::gather(const Chunk& chunk, PointToPoint& network, Stream& stream) {
  const std::size_t mine_bytes = shard(chunk, rank_).n_elements * size_bytes(chunk.wire);
  transfers_.clear();
  for (int peer = 0; peer < n_ranks_; ++peer) {
    if (peer == rank_) continue;
    const std::size_t theirs_bytes = shard(chunk, peer).n_elements * size_bytes(chunk.wire);
    if (mine_bytes > 0) transfers_.push_back({Transfer::Direction::send, peer, wire_data(chunk, rank_), mine_bytes});
    if (theirs_bytes > 0)
      transfers_.push_back({Transfer::Direction::receive, peer, wire_data(chunk, peer), theirs_bytes});
  }
  network.transfer(transfers_, stream);
  if (!chunk.is_narrow()) return;
  const Range mine = shard(chunk, rank_);
  widen(chunk, {0, mine.begin}, stream);
  const std::size_t behind = mine.begin + mine.n_elements;
  widen(chunk, {behind, chunk.n_elements - behind}, stream);
}

}  // namespace lockstep::comm
