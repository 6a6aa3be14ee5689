#include "comm/device_exchange.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/sum.h"
#include "lockstep/bf16.h"

namespace lockstep::comm {
namespace {

std::size_t incoming_bytes(const DeviceExchange::Plan& plan) {
  return incoming_shards_bytes(DeviceExchange::kChunkBytes, plan.n_ranks());
}

/// The place of `rank` in the list.
int place_in(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
}

}  // namespace

int DeviceExchange::Plan::n_ranks() const { return order.size(); }

bool DeviceExchange::Plan::has_levels() const {
  const auto has_as_many = [this](const std::vector<int>& ranks) { return ranks.size() == nodes[0].size(); };
  return !is_fixed && narrowest_wire != DType::fp32 && nodes.size() > 1 && nodes[0].size() > 1 &&
         std::ranges::all_of(nodes, has_as_many);
}

DeviceExchange::DeviceExchange(Backend& backend, int rank, Plan plan, const Allocate& allocate)
    : plan_(std::move(plan)),
      sum_fp32_(backend.make(OrderedSumDescription{.dtype = DType::fp32})),
      sum_fp64_(backend.make(OrderedSumDescription{.dtype = DType::fp64})),
      sum_bf16_(backend.make(OrderedSumDescription{.dtype = DType::bf16})),
      incoming_(allocate(incoming_bytes(plan_), "shards of other ranks")) {
  const auto n_ranks = static_cast<std::size_t>(plan_.n_ranks());
  all_ = {.ranks = std::vector<int>(n_ranks), .mine = rank, .order = plan_.order};
  std::iota(all_.ranks.begin(), all_.ranks.end(), 0);
  if (plan_.has_levels()) {
    const auto& node = *std::ranges::find_if(
        plan_.nodes, [&](const std::vector<int>& ranks) { return std::ranges::find(ranks, rank) != ranks.end(); });
    of_node_ = {.ranks = node, .mine = place_in(node, rank), .order = sequential_order(static_cast<int>(node.size()))};
    for (const std::vector<int>& ranks : plan_.nodes)
      of_shard_.ranks.push_back(ranks[static_cast<std::size_t>(of_node_.mine)]);
    of_shard_.mine = place_in(of_shard_.ranks, rank);
    of_shard_.order = sequential_order(of_shard_.size());
  }
  transfers_.reserve(2 * n_ranks);
  open_.reserve(n_ranks);
  if (plan_.narrowest_wire == DType::fp32) return;
  narrow_ = backend.make(CastDescription{.from = DType::fp32, .to = plan_.narrowest_wire});
  widen_ = backend.make(CastDescription{.from = plan_.narrowest_wire, .to = DType::fp32});
  rounded_ = allocate(kChunkBytes / 2, "rounded gradients");
  rounded_incoming_ = allocate(incoming_bytes(plan_) / 2, "rounded shards of other ranks");
}

std::size_t DeviceExchange::buffer_bytes(const Plan& plan) {
  return exchange_buffer_bytes(kChunkBytes, plan.n_ranks(), plan.narrowest_wire);
}

void DeviceExchange::all_reduce(const Slice& slice, PointToPoint& network, Stream& stream) {
  const std::size_t length = kChunkBytes / size_bytes(slice.dtype);
  for (std::size_t begin = 0; begin < slice.n_elements; begin += length) {
    const Chunk chunk{.data = static_cast<std::byte*>(slice.data) + begin * size_bytes(slice.dtype),
                      .rounded = rounded_ ? static_cast<std::byte*>(rounded_->data()) : nullptr,
                      .n_elements = std::min(length, slice.n_elements - begin),
                      .dtype = slice.dtype,
                      .wire = slice.dtype == DType::fp32 ? slice.wire : slice.dtype};
    if (chunk.is_narrow() && plan_.has_levels()) {
      sum_in_levels(chunk, network, stream);
      continue;
    }
    scatter(chunk, all_, network, stream);
    sum_my_shard(chunk, all_, stream);
    gather(chunk, all_, network, stream);
  }
}

void DeviceExchange::sum_in_levels(const Chunk& chunk, PointToPoint& network, Stream& stream) {
  Chunk wide = chunk;
  wide.wire = chunk.dtype;
  scatter(wide, of_node_, network, stream);
  sum_my_shard(wide, of_node_, stream);
  const Chunk mine = part_of(chunk, shard(chunk, of_node_, of_node_.mine));
  scatter(mine, of_shard_, network, stream);
  sum_my_shard(mine, of_shard_, stream);
  gather(mine, of_shard_, network, stream);
  gather(chunk, of_node_, network, stream);  // sends the rounded total of the shard, which `mine` has
}

ElementRange DeviceExchange::shard(const Chunk& chunk, const Group& group, int member) {
  return shard_of(chunk.n_elements, size_bytes(chunk.dtype), group.size(), member);
}

std::byte* DeviceExchange::values(const Chunk& chunk, const Group& group, int member) {
  return chunk.data + shard(chunk, group, member).begin * size_bytes(chunk.dtype);
}

std::byte* DeviceExchange::wire_data(const Chunk& chunk, const Group& group, int member) {
  if (!chunk.is_narrow()) return values(chunk, group, member);
  return chunk.rounded + shard(chunk, group, member).begin * size_bytes(chunk.wire);
}

/// Where this rank receives a member's copy of its shard. The copies are adjacent.
std::byte* DeviceExchange::incoming(const Chunk& chunk, const Group& group, int member) const {
  return static_cast<std::byte*>(incoming_->data()) +
         static_cast<std::size_t>(member) * shard(chunk, group, group.mine).n_elements * size_bytes(chunk.dtype);
}

DeviceExchange::Chunk DeviceExchange::part_of(const Chunk& chunk, ElementRange range) {
  Chunk part = chunk;
  part.data += range.begin * size_bytes(chunk.dtype);
  part.rounded += range.begin * size_bytes(chunk.wire);
  part.n_elements = range.n_elements;
  return part;
}

void DeviceExchange::narrow(const Chunk& chunk, ElementRange range, Stream& stream) {
  if (range.n_elements == 0) return;
  narrow_->apply({.source = reinterpret_cast<const float*>(chunk.data) + range.begin,
                  .target = reinterpret_cast<Bf16*>(chunk.rounded) + range.begin,
                  .n_elements = range.n_elements},
                 {}, stream);
}

void DeviceExchange::widen(const Chunk& chunk, ElementRange range, Stream& stream) {
  if (range.n_elements == 0) return;
  widen_->apply({.source = reinterpret_cast<const Bf16*>(chunk.rounded) + range.begin,
                 .target = reinterpret_cast<float*>(chunk.data) + range.begin,
                 .n_elements = range.n_elements},
                {}, stream);
}

void DeviceExchange::scatter(const Chunk& chunk, const Group& group, PointToPoint& network, Stream& stream) {
  const ElementRange mine = shard(chunk, group, group.mine);
  const std::size_t mine_bytes = mine.n_elements * size_bytes(chunk.wire);
  std::byte* const arriving = chunk.is_narrow() ? static_cast<std::byte*>(rounded_incoming_->data())
                                                : static_cast<std::byte*>(incoming_->data());
  if (chunk.is_narrow()) narrow(chunk, {0, chunk.n_elements}, stream);
  transfers_.clear();
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == group.mine) continue;
    const int rank = group.ranks[static_cast<std::size_t>(peer)];
    const std::size_t theirs_bytes = shard(chunk, group, peer).n_elements * size_bytes(chunk.wire);
    if (theirs_bytes > 0)
      transfers_.push_back({Transfer::Direction::send, rank, wire_data(chunk, group, peer), theirs_bytes});
    if (mine_bytes > 0)
      transfers_.push_back(
          {Transfer::Direction::receive, rank, arriving + static_cast<std::size_t>(peer) * mine_bytes, mine_bytes});
  }
  network.transfer(transfers_, stream);
  if (!chunk.is_narrow() || mine.n_elements == 0) return;
  // One cast widens all of them. The slot of this rank contains old data, which is not read.
  widen_->apply({.source = rounded_incoming_->data(),
                 .target = incoming_->data(),
                 .n_elements = static_cast<std::size_t>(group.size()) * mine.n_elements},
                {}, stream);
  widen(chunk, mine, stream);  // rounded like the shards that were received
}

void DeviceExchange::sum_my_shard(const Chunk& chunk, const Group& group, Stream& stream) {
  const ElementRange mine = shard(chunk, group, group.mine);
  if (mine.n_elements == 0) return;
  OrderedSum& sum = chunk.dtype == DType::fp64 ? *sum_fp64_ : chunk.dtype == DType::bf16 ? *sum_bf16_ : *sum_fp32_;
  open_.clear();
  for (int source = 0; source < group.size(); ++source) {
    std::byte* const value = source == group.mine ? values(chunk, group, source) : incoming(chunk, group, source);
    const auto n_merged = static_cast<std::size_t>(group.order.merges[static_cast<std::size_t>(source)]);
    const bool is_last = source + 1 == group.size();
    if (n_merged == 0 && !is_last) {
      open_.push_back(value);
      continue;
    }
    // A sum overwrites its last source; the final one is the result.
    std::byte* const target = is_last ? values(chunk, group, group.mine) : value;
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

void DeviceExchange::gather(const Chunk& chunk, const Group& group, PointToPoint& network, Stream& stream) {
  const ElementRange mine = shard(chunk, group, group.mine);
  const std::size_t mine_bytes = mine.n_elements * size_bytes(chunk.wire);
  transfers_.clear();
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == group.mine) continue;
    const int rank = group.ranks[static_cast<std::size_t>(peer)];
    const std::size_t theirs_bytes = shard(chunk, group, peer).n_elements * size_bytes(chunk.wire);
    if (mine_bytes > 0)
      transfers_.push_back({Transfer::Direction::send, rank, wire_data(chunk, group, group.mine), mine_bytes});
    if (theirs_bytes > 0)
      transfers_.push_back({Transfer::Direction::receive, rank, wire_data(chunk, group, peer), theirs_bytes});
  }
  network.transfer(transfers_, stream);
  if (!chunk.is_narrow()) return;
  widen(chunk, {0, mine.begin}, stream);
  widen(chunk, {mine.end(), chunk.n_elements - mine.end()}, stream);
}

}  // namespace lockstep::comm
