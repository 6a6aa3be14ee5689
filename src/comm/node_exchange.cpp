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
void widen_all(float* to, const std::uint16_t* from, std::size_t n, DType wire) {
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

void NodeExchange::start(std::span<const Part> parts, DType dtype, DType wire, Totals totals,
                         const SumRound& of_round) {
  round_ = of_round;
  dtype_ = dtype;
  wire_ = dtype == DType::fp32 ? wire : dtype;
  totals_ = totals;
  parts_.clear();
  n_mine_ = 0;
  std::size_t place = 0;
  for (const Part& part : parts) {
    if (part.n_elements == 0) continue;
    parts_.push_back({part, place});
    place += part.n_elements;
    if (part.node == node_) n_mine_ += part.n_elements;
    if (is_narrow()) round(parts_.back());
  }
  std::byte* incoming = is_narrow() ? reinterpret_cast<std::byte*>(rounded_incoming_.data()) : incoming_.data();
  n_requests_ = 0;
  for (int node = 0; node < n_nodes_; ++node) {
    const int peer = leaders_[static_cast<std::size_t>(node)];
    for (const PlacedPart& part : parts_) {
      if (is_mine(part)) {
        if (node != node_) mpi_.receive(next_request(), MpiGroup::data, peer, tag_, incoming, wire_bytes(part));
        incoming += wire_bytes(part);
      } else if (part.node == node) {
        mpi_.send(next_request(), MpiGroup::data, peer, tag_, wire_data(part), wire_bytes(part));
      }
    }
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
    sum_my_parts();
    gather();
    stage_ = totals_ == Totals::for_all ? Stage::gathering : Stage::idle;
  } else {
    finish_gather();
    stage_ = Stage::idle;
  }
  return true;
}

void NodeExchange::sum_my_parts() {
  if (n_mine_ == 0) return;
  if (is_narrow())
    widen_all(reinterpret_cast<float*>(incoming_.data()), rounded_incoming_.data(), leaders_.size() * n_mine_, wire_);
  const std::size_t stride = n_mine_ * size_bytes(dtype_);
  std::size_t done = 0;  // bytes
  for (const PlacedPart& part : parts_) {
    if (!is_mine(part)) continue;
    for (std::size_t i = 0; i < leaders_.size(); ++i) sources_[i] = incoming_.data() + i * stride + done;
    sources_[static_cast<std::size_t>(node_)] = part.values;
    if (is_narrow()) widen(part);  // rounded like those that were received
    sum(sources_, std::array{part.values}, part.n_elements, dtype_, round_.exists() ? round_.merges : order_.merges,
        open_sums(round_, part.begin, dtype_));
    done += part.n_elements * size_bytes(dtype_);
    if (!is_narrow()) continue;
    round(part);
    widen(part);
  }
}

void NodeExchange::gather() {
  n_requests_ = 0;
  if (totals_ == Totals::for_owners) return;
  for (int node = 0; node < n_nodes_; ++node) {
    if (node == node_) continue;
    const int peer = leaders_[static_cast<std::size_t>(node)];
    for (const PlacedPart& part : parts_) {
      if (is_mine(part))
        mpi_.send(next_request(), MpiGroup::data, peer, tag_ + 1, wire_data(part), wire_bytes(part));
      else if (part.node == node)
        mpi_.receive(next_request(), MpiGroup::data, peer, tag_ + 1, wire_data(part), wire_bytes(part));
    }
  }
}

void NodeExchange::finish_gather() {
  if (!is_narrow()) return;
  for (const PlacedPart& part : parts_)
    if (!is_mine(part)) widen(part);
}

void NodeExchange::round(const PlacedPart& part) {
  narrow(rounded_.data() + part.place, reinterpret_cast<const float*>(part.values), part.n_elements, wire_);
}

void NodeExchange::widen(const PlacedPart& part) {
  widen_all(reinterpret_cast<float*>(part.values), rounded_.data() + part.place, part.n_elements, wire_);
}

}  // namespace lockstep::comm
