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
      requests_(2 * leaders.size()),
      incoming_(incoming_shards_bytes(chunk_bytes, n_nodes_)),
      rounded_(narrowest_wire == DType::fp32 ? 0 : chunk_bytes / sizeof(float)),
      rounded_incoming_(narrowest_wire == DType::fp32 ? 0 : incoming_.size() / sizeof(float)),
      sources_(leaders.size()) {}

std::size_t NodeExchange::buffer_bytes(int n_nodes, std::size_t chunk_bytes, DType narrowest_wire) {
  const std::size_t incoming = incoming_shards_bytes(chunk_bytes, n_nodes);
  return incoming + (narrowest_wire == DType::fp32 ? 0 : (incoming + chunk_bytes) / 2);
}

void NodeExchange::start(std::byte* chunk, std::size_t n_elements, DType dtype, DType wire) {
  chunk_ = chunk;
  n_elements_ = n_elements;
  dtype_ = dtype;
  wire_ = dtype == DType::fp32 ? wire : dtype;
  if (is_narrow()) narrow(rounded_.data(), values(0), n_elements, wire_);
  std::byte* const incoming = is_narrow() ? reinterpret_cast<std::byte*>(rounded_incoming_.data()) : incoming_.data();
  const std::size_t mine_bytes = wire_bytes(node_);
  for (int node = 0; node < n_nodes_; ++node) {
    if (node == node_) continue;
    const auto i = static_cast<std::size_t>(node);
    const int peer = leaders_[i];
    if (mine_bytes > 0) {
      mpi_.receive(requests_[leaders_.size() + i], MpiGroup::data, peer, tag_, incoming + i * mine_bytes, mine_bytes);
    }
    if (wire_bytes(node) > 0) {
      mpi_.send(requests_[i], MpiGroup::data, peer, tag_, wire_data(node), wire_bytes(node));
    }
  }
  stage_ = Stage::scattering;
}

bool NodeExchange::transfers_done() {
  for (MpiRequest& request : requests_) {
    if (!mpi_.test(request)) return false;
  }
  return true;
}

bool NodeExchange::advance() {
  if (stage_ == Stage::idle || !transfers_done()) return false;
  if (stage_ == Stage::scattering) {
    sum_my_shard();
    gather();
    stage_ = Stage::gathering;
  } else {
    for (int node = 0; is_narrow() && node < n_nodes_; ++node) {
      if (node != node_) widen(values(node), rounded_.data() + shard(node).begin, shard(node).n_elements, wire_);
    }
    stage_ = Stage::idle;
  }
  return true;
}

void NodeExchange::sum_my_shard() {
  const auto [begin, n] = shard(node_);
  if (n == 0) return;
  if (is_narrow())
    widen(reinterpret_cast<float*>(incoming_.data()), rounded_incoming_.data(), leaders_.size() * n, wire_);
  const std::size_t mine_bytes = n * size_bytes(dtype_);
  for (std::size_t i = 0; i < leaders_.size(); ++i) sources_[i] = incoming_.data() + i * mine_bytes;
  std::byte* const mine = chunk_ + begin * size_bytes(dtype_);
  sources_[static_cast<std::size_t>(node_)] = mine;
  if (is_narrow())
    widen(values(node_), rounded_.data() + begin, n, wire_);  // rounded like the shards that were received
  sum(sources_, std::array{mine}, n, dtype_, order_);
  if (!is_narrow()) return;
  narrow(rounded_.data() + begin, values(node_), n, wire_);
  widen(values(node_), rounded_.data() + begin, n, wire_);
}

void NodeExchange::gather() {
  for (int node = 0; node < n_nodes_; ++node) {
    if (node == node_) continue;
    const auto i = static_cast<std::size_t>(node);
    const int peer = leaders_[i];
    if (wire_bytes(node) > 0) {
      mpi_.receive(requests_[leaders_.size() + i], MpiGroup::data, peer, tag_ + 1, wire_data(node), wire_bytes(node));
    }
    if (wire_bytes(node_) > 0) {
      mpi_.send(requests_[i], MpiGroup::data, peer, tag_ + 1, wire_data(node_), wire_bytes(node_));
    }
  }
}

}  // namespace lockstep::comm
