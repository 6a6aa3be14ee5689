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
  std::vector<int> all(n_ranks);
  std::iota(all.begin(), all.end(), 0);
  all_ = ranks_by_themselves(all, rank, plan_.order);
  if (plan_.has_levels()) {
    const auto& node = *std::ranges::find_if(
        plan_.nodes, [&](const std::vector<int>& ranks) { return std::ranges::find(ranks, rank) != ranks.end(); });
    of_node_ = {.ranks = node, .mine = place_in(node, rank), .order = sequential_order(static_cast<int>(node.size()))};
    for (std::size_t local = 0; local < node.size(); ++local) {
      std::vector<int>& owned = of_node_.owned.emplace_back();
      for (const std::vector<int>& ranks : plan_.nodes) owned.push_back(ranks[local]);
    }
    const std::vector<int>& peers = of_node_.owned[static_cast<std::size_t>(of_node_.mine)];
    of_shard_ = ranks_by_themselves(peers, rank, sequential_order(static_cast<int>(peers.size())));
  }
  transfers_.reserve(2 * n_ranks);
  open_.reserve(n_ranks + OrderedSumCalls::Open::kMax);
  if (plan_.narrowest_wire == DType::fp32) return;
  narrow_ = backend.make(CastDescription{.from = DType::fp32, .to = plan_.narrowest_wire});
  widen_ = backend.make(CastDescription{.from = plan_.narrowest_wire, .to = DType::fp32});
  rounded_ = allocate(kChunkBytes / 2, "rounded gradients");
  rounded_incoming_ = allocate(incoming_bytes(plan_) / 2, "rounded shards of other ranks");
}

std::size_t DeviceExchange::buffer_bytes(const Plan& plan) {
  return exchange_buffer_bytes(kChunkBytes, plan.n_ranks(), plan.narrowest_wire);
}

DeviceExchange::Group DeviceExchange::ranks_by_themselves(std::vector<int> ranks, int rank, SumOrder order) {
  Group group{.ranks = std::move(ranks), .mine = 0, .order = std::move(order)};
  group.mine = place_in(group.ranks, rank);
  for (const int owner : group.ranks) group.owned.push_back({owner});
  return group;
}

bool DeviceExchange::has_levels(const Chunk& chunk) const { return chunk.is_narrow() && plan_.has_levels(); }

DeviceExchange::Chunk DeviceExchange::chunk_of(const Slice& slice, std::size_t begin, std::size_t n_elements,
                                               const SumRound& round) const {
  SumRound of_chunk = round;
  if (round.exists()) of_chunk.open = open_sums(round, begin, slice.dtype).first;
  return {.data = static_cast<std::byte*>(slice.data) + begin * size_bytes(slice.dtype),
          .rounded = rounded_ ? static_cast<std::byte*>(rounded_->data()) : nullptr,
          .n_elements = n_elements,
          .dtype = slice.dtype,
          .wire = slice.dtype == DType::fp32 ? slice.wire : slice.dtype,
          .round = of_chunk};
}

void DeviceExchange::all_reduce(const Slice& slice, PointToPoint& network, Stream& stream, const SumRound& round) {
  const std::size_t length = kChunkBytes / size_bytes(slice.dtype);
  for (std::size_t begin = 0; begin < slice.n_elements; begin += length) {
    const Chunk chunk = chunk_of(slice, begin, std::min(length, slice.n_elements - begin), round);
    if (has_levels(chunk)) {
      sum_in_levels(chunk, network, stream);
      continue;
    }
    reduce(chunk, all_, network, stream);
    gather(chunk, all_, network, stream);
  }
}

void DeviceExchange::reduce_scatter(const Slice& slice, PointToPoint& network, Stream& stream, const SumRound& round) {
  const auto n_ranks = static_cast<std::size_t>(all_.size());
  const std::size_t shard = slice.n_elements / n_ranks, length = kChunkBytes / size_bytes(slice.dtype) / n_ranks;
  for (std::size_t begin = 0; begin < shard; begin += length) {
    Chunk chunk = chunk_of(slice, begin, std::min(length, shard - begin), round);
    chunk.stride = shard;
    if (has_levels(chunk)) reduce(unrounded(chunk), of_node_, network, stream);
    reduce(chunk, has_levels(chunk) ? of_shard_ : all_, network, stream);
  }
}

DeviceExchange::Chunk DeviceExchange::unrounded(Chunk chunk) {
  chunk.wire = chunk.dtype;
  return chunk;
}

void DeviceExchange::reduce(const Chunk& chunk, const Group& group, PointToPoint& network, Stream& stream) {
  scatter(chunk, group, network, stream);
  sum_mine(chunk, group, stream);
}

void DeviceExchange::sum_in_levels(const Chunk& chunk, PointToPoint& network, Stream& stream) {
  reduce(unrounded(chunk), of_node_, network, stream);
  const Chunk mine = part_of(chunk, shard(chunk, of_node_, of_node_.mine));
  reduce(mine, of_shard_, network, stream);
  gather(mine, of_shard_, network, stream);
  gather(chunk, of_node_, network, stream);  // sends the rounded total of the shard, which `mine` has
}

ElementRange DeviceExchange::shard(const Chunk& chunk, const Group& group, int member) {
  return shard_of(chunk.n_elements, size_bytes(chunk.dtype), group.size(), member);
}

template <typename Call>
void DeviceExchange::for_pieces(const Chunk& chunk, const Group& group, int member, const Call& call) {
  if (chunk.stride == 0) {
    const ElementRange range = shard(chunk, group, member);
    if (range.n_elements > 0) call(Piece{range, range.begin, 0});
    return;
  }
  std::size_t before = 0;
  for (const int owner : group.owned[static_cast<std::size_t>(member)]) {
    const auto number = static_cast<std::size_t>(owner);
    call(Piece{{number * chunk.stride, chunk.n_elements}, number * chunk.n_elements, before});
    before += chunk.n_elements;
  }
}

std::size_t DeviceExchange::n_owned(const Chunk& chunk, const Group& group, int member) {
  std::size_t n = 0;
  for_pieces(chunk, group, member, [&](const Piece& piece) { n += piece.range.n_elements; });
  return n;
}

std::byte* DeviceExchange::wire_data(const Chunk& chunk, const Piece& piece) {
  return chunk.is_narrow() ? chunk.rounded + piece.place * size_bytes(chunk.wire)
                           : chunk.data + piece.range.begin * size_bytes(chunk.dtype);
}

DeviceExchange::Chunk DeviceExchange::part_of(const Chunk& chunk, ElementRange range) {
  Chunk part = chunk;
  part.data += range.begin * size_bytes(chunk.dtype);
  part.rounded += range.begin * size_bytes(chunk.wire);
  part.n_elements = range.n_elements;
  return part;
}

void DeviceExchange::narrow(const Chunk& chunk, const Piece& piece, Stream& stream) {
  if (piece.range.n_elements == 0) return;
  narrow_->apply({.source = reinterpret_cast<const float*>(chunk.data) + piece.range.begin,
                  .target = reinterpret_cast<Bf16*>(chunk.rounded) + piece.place,
                  .n_elements = piece.range.n_elements},
                 {}, stream);
}

void DeviceExchange::widen(const Chunk& chunk, const Piece& piece, Stream& stream) {
  if (piece.range.n_elements == 0) return;
  widen_->apply({.source = reinterpret_cast<const Bf16*>(chunk.rounded) + piece.place,
                 .target = reinterpret_cast<float*>(chunk.data) + piece.range.begin,
                 .n_elements = piece.range.n_elements},
                {}, stream);
}

void DeviceExchange::scatter(const Chunk& chunk, const Group& group, PointToPoint& network, Stream& stream) {
  const std::size_t n_mine = n_owned(chunk, group, group.mine), element_bytes = size_bytes(chunk.wire);
  std::byte* const arriving = chunk.is_narrow() ? static_cast<std::byte*>(rounded_incoming_->data())
                                                : static_cast<std::byte*>(incoming_->data());
  if (chunk.is_narrow() && chunk.stride == 0) narrow(chunk, {{0, chunk.n_elements}}, stream);
  transfers_.clear();
  for (int peer = 0; peer < group.size(); ++peer) {
    const int rank = group.ranks[static_cast<std::size_t>(peer)];
    for_pieces(chunk, group, peer, [&](const Piece& theirs) {
      if (chunk.is_narrow() && chunk.stride > 0) narrow(chunk, theirs, stream);
      if (peer == group.mine) return;
      transfers_.push_back(
          {Transfer::Direction::send, rank, wire_data(chunk, theirs), theirs.range.n_elements * element_bytes});
    });
    if (peer == group.mine) continue;
    for_pieces(chunk, group, group.mine, [&](const Piece& mine) {
      std::byte* const at = arriving + (static_cast<std::size_t>(peer) * n_mine + mine.before) * element_bytes;
      transfers_.push_back({Transfer::Direction::receive, rank, at, mine.range.n_elements * element_bytes});
    });
  }
  network.transfer(transfers_, stream);
  if (!chunk.is_narrow() || n_mine == 0) return;
  // One cast widens all of them. The slot of this rank contains old data, which is not read.
  widen_->apply({.source = rounded_incoming_->data(),
                 .target = incoming_->data(),
                 .n_elements = static_cast<std::size_t>(group.size()) * n_mine},
                {}, stream);
  // Rounded like the ones that were received
  for_pieces(chunk, group, group.mine, [&](const Piece& mine) { widen(chunk, mine, stream); });
}

OrderedSum& DeviceExchange::sum_of(DType dtype) const {
  return dtype == DType::fp64 ? *sum_fp64_ : dtype == DType::bf16 ? *sum_bf16_ : *sum_fp32_;
}

std::byte* DeviceExchange::value_of(const Chunk& chunk, const Group& group, const Piece& mine, int source) const {
  const std::size_t element_bytes = size_bytes(chunk.dtype);
  if (source == group.mine) return chunk.data + mine.range.begin * element_bytes;
  const std::size_t place = static_cast<std::size_t>(source) * n_owned(chunk, group, group.mine) + mine.before;
  return static_cast<std::byte*>(incoming_->data()) + place * element_bytes;
}

namespace {

/// Whether the entry of the stack that ends with this source is still there after the last one.
bool is_left_by(std::span<const int> merges, int source, std::size_t entry) {
  std::size_t n = entry + 1;
  for (const int merged : merges.subspan(static_cast<std::size_t>(source) + 1)) {
    n -= static_cast<std::size_t>(merged);
    if (n <= entry) return false;
    ++n;
  }
  return true;
}

}  // namespace

// Sums overwrite their last source. In a round, the entries that it leaves on the stack are written where they are
// kept; others are merged before its end.
void DeviceExchange::sum_mine(const Chunk& chunk, const Group& group, Stream& stream) {
  OrderedSum& sum = sum_of(chunk.dtype);
  const bool is_round = chunk.round.exists(), is_all_reduce = chunk.stride == 0;
  const std::span<const int> merges = is_round ? chunk.round.merges : group.order.merges;
  for_pieces(chunk, group, group.mine, [&](const Piece& mine) {
    const OpenSums kept = open_sums(chunk.round, is_all_reduce ? mine.range.begin : 0, chunk.dtype);
    std::byte* const own = value_of(chunk, group, mine, group.mine);
    open_.clear();
    while (std::ssize(open_) < kept.n_before) open_.push_back(kept.at(open_.size()));
    for (int source = 0; source < group.size(); ++source) {
      std::byte* const value = value_of(chunk, group, mine, source);
      const auto n_merged = static_cast<std::size_t>(merges[static_cast<std::size_t>(source)]);
      const std::size_t entry = open_.size() - n_merged;
      std::byte* const target = is_round && is_left_by(merges, source, entry) ? kept.at(entry)
                                : !is_round && source + 1 == group.size()     ? own
                                                                              : value;
      if (n_merged > 0 || target != value)
        sum.apply({.value = value,
                   .open = std::span<const void* const>(open_).last(n_merged),
                   .target = target,
                   .n_elements = mine.range.n_elements},
                  {}, stream);
      open_.resize(entry);
      open_.push_back(target);
    }
    if (is_round && is_all_reduce)
      sum.apply({.value = kept.first, .target = own, .n_elements = mine.range.n_elements}, {}, stream);
    if (!chunk.is_narrow()) return;
    narrow(chunk, mine, stream);
    widen(chunk, mine, stream);
  });
}

void DeviceExchange::gather(const Chunk& chunk, const Group& group, PointToPoint& network, Stream& stream) {
  transfers_.clear();
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == group.mine) continue;
    const int rank = group.ranks[static_cast<std::size_t>(peer)];
    const auto add = [&](Transfer::Direction direction, int owner) {
      for_pieces(chunk, group, owner, [&](const Piece& piece) {
        transfers_.push_back(
            {direction, rank, wire_data(chunk, piece), piece.range.n_elements * size_bytes(chunk.wire)});
      });
    };
    add(Transfer::Direction::send, group.mine);
    add(Transfer::Direction::receive, peer);
  }
  network.transfer(transfers_, stream);
  if (!chunk.is_narrow()) return;
  const ElementRange mine = shard(chunk, group, group.mine);
  widen(chunk, {{0, mine.begin}}, stream);
  widen(chunk, {{mine.end(), chunk.n_elements - mine.end()}, mine.end()}, stream);
}

}  // namespace lockstep::comm
