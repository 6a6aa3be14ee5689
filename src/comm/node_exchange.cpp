#include "comm/node_exchange.h"

#include <array>

#include "lockstep/bf16.h"
#include "lockstep/fp16.h"

namespace lockstep::comm {
namespace {

// `wire` is bf16 or fp16.
void narrow(std::uint16_t* to, const float* from, std::size_t n, DType wire) {
  if (wire == DType::bf16)
    for (std::size_t i = 0; i < n; ++i) to[i] = to_bf16(from[i]).bits;
  else
    for (std::size_t i = 0; i < n; ++i) to[i] = to_fp16(from[i]).bits;
}
void widen(float* to, const std::uint16_t* from, std::size_t n, DType wire) {
  if (wire == DType::bf16)
    for (std::size_t i = 0; i < n; ++i) to[i] = to_float(Bf16{from[i]});
  else
    for (std::size_t i = 0; i < n; ++i) to[i] = to_float(Fp16{from[i]});
}

}  // namespace

NodeExchange::NodeExchange(MpiCalls& mpi, const std::vector<int>& leaders, const SumOrder& order, int node, int tag,
                           std::size_t chunk_bytes, DType narrowest_wire)
    : mpi_(mpi),
      leaders_(leaders),
      order_(order),
      node_(node),
      n_nodes_(static_cast<int>(leaders.size())),
      tag_(tag),
      incoming_(incoming_shards_bytes(chunk_bytes, n_nodes_)),
      rounded_(narrowest_wire == DType::fp32 ? 0 : chunk_bytes / sizeof(float)),
      rounded_incoming_(narrowest_wire == DType::fp32 ? 0 : incoming_.size() / sizeof(float)),
      sources_(leaders.size()) {}

void NodeExchange::start(std::byte* chunk, std::size_t n_elements, DType dtype, DType wire,
                         std::span<const Part> needed) {
  chunk_ = chunk;
  n_elements_ = n_elements;
  dtype_ = dtype;
  wire_ = dtype == DType::fp32 ? wire : dtype;
  needed_.assign(needed.begin(), needed.end());
  const ElementRange all{0, n_elements};
  if (is_narrow()) narrow(rounded_.data(), values(all), n_elements, wire_);
  std::byte* const incoming = is_narrow() ? reinterpret_cast<std::byte*>(rounded_incoming_.data()) : incoming_.data();
  const std::size_t mine_bytes = wire_bytes(shard(node_));
  n_requests_ = 0;
  for (int node = 0; node < n_nodes_; ++node) {
    if (node == node_) continue;
    const auto i = static_cast<std::size_t>(node);
    const ElementRange theirs = shard(node);
    if (mine_bytes > 0)
      mpi_.receive(next_request(), MpiGroup::data, leaders_[i], tag_, incoming + i * mine_bytes, mine_bytes);
    if (theirs.n_elements > 0)
      mpi_.send(next_request(), MpiGroup::data, leaders_[i], tag_, wire_data(theirs), wire_bytes(theirs));
  }
  stage_ = Stage::scattering;
}

MpiRequest& NodeExchange::next_request() {
  if (n_requests_ == requests_.size()) requests_.emplace_back();  // growing moves pending requests, which is allowed
  return requests_[n_requests_++];
}

bool NodeExchange::advance() {
  if (stage_ == Stage::idle || !mpi_.test(std::span(requests_).first(n_requests_))) return false;
  if (stage_ == Stage::scattering) {
    sum_my_shard();
    gather();
    stage_ = Stage::gathering;
  } else {
    finish_gather();
    stage_ = Stage::idle;
  }
  return true;
}

void NodeExchange::sum_my_shard() {
  const ElementRange mine = shard(node_);
  const std::size_t n = mine.n_elements;
  if (n == 0) return;
  if (is_narrow())
    widen(reinterpret_cast<float*>(incoming_.data()), rounded_incoming_.data(), leaders_.size() * n, wire_);
  const std::size_t mine_bytes = n * size_bytes(dtype_);
  for (std::size_t i = 0; i < leaders_.size(); ++i) sources_[i] = incoming_.data() + i * mine_bytes;
  std::byte* const total = chunk_ + mine.begin * size_bytes(dtype_);
  sources_[static_cast<std::size_t>(node_)] = total;
  if (is_narrow())
    widen(values(mine), rounded_.data() + mine.begin, n, wire_);  // rounded like the shards that were received
  sum(sources_, std::array{total}, n, dtype_, order_);
  if (!is_narrow()) return;
  narrow(rounded_.data() + mine.begin, values(mine), n, wire_);
  widen(values(mine), rounded_.data() + mine.begin, n, wire_);
}

template <typename Call>
void NodeExchange::for_needed(int node, int owner, const Call& call) const {
  const ElementRange summed = shard(owner);
  if (needed_.empty()) {
    if (summed.n_elements > 0) call(summed);
    return;
  }
  for (const Part& part : needed_) {
    const ElementRange range = overlap(part.range, summed);
    if (part.node == node && range.n_elements > 0) call(range);
  }
}

void NodeExchange::gather() {
  n_requests_ = 0;
  for (int node = 0; node < n_nodes_; ++node) {
    if (node == node_) continue;
    const int peer = leaders_[static_cast<std::size_t>(node)];
    for_needed(node_, node, [&](ElementRange range) {
      mpi_.receive(next_request(), MpiGroup::data, peer, tag_ + 1, wire_data(range), wire_bytes(range));
    });
    for_needed(node, node_, [&](ElementRange range) {
      mpi_.send(next_request(), MpiGroup::data, peer, tag_ + 1, wire_data(range), wire_bytes(range));
    });
  }
}

void NodeExchange::finish_gather() {
  if (!is_narrow()) return;
  for (int node = 0; node < n_nodes_; ++node) {
    if (node == node_) continue;
    for_needed(node_, node, [&](ElementRange range) {
      widen(values(range), rounded_.data() + range.begin, range.n_elements, wire_);
    });
  }
}

}  // namespace lockstep::comm
