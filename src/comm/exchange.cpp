#include "comm/exchange.h"

#include <array>

namespace lockstep::comm {

Exchange::Exchange(MpiCalls& mpi, const std::vector<int>& leaders, const SumOrder& order, int node, int tag,
                   std::size_t chunk_bytes)
    : mpi_(mpi),
      leaders_(leaders),
      order_(order),
      node_(node),
      n_nodes_(static_cast<int>(leaders.size())),
      tag_(tag),
      requests_(2 * leaders.size()),
      incoming_(buffer_bytes(n_nodes_, chunk_bytes)),
      sources_(leaders.size()) {}

std::size_t Exchange::buffer_bytes(int n_nodes, std::size_t chunk_bytes) {
  return static_cast<std::size_t>(n_nodes) * part_of(chunk_bytes, 1, n_nodes, 0).n_elements;
}

void Exchange::start(std::byte* chunk, std::size_t n_elements, DType dtype) {
  chunk_ = chunk;
  n_elements_ = n_elements;
  dtype_ = dtype;
  element_bytes_ = size_bytes(dtype);
  const std::size_t mine_bytes = part_bytes(node_);
  for (int node = 0; node < n_nodes_; ++node) {
    if (node == node_) continue;
    const auto i = static_cast<std::size_t>(node);
    const int peer = leaders_[i];
    if (mine_bytes > 0) {
      mpi_.receive(requests_[leaders_.size() + i], MpiGroup::data, peer, tag_, incoming_.data() + i * mine_bytes,
                   mine_bytes);
    }
    if (part_bytes(node) > 0) {
      mpi_.send(requests_[i], MpiGroup::data, peer, tag_, part_data(node), part_bytes(node));
    }
  }
  stage_ = Stage::scattering;
}

bool Exchange::are_over() {
  for (MpiRequest& request : requests_) {
    if (!mpi_.test(request)) return false;
  }
  return true;
}

bool Exchange::advance() {
  if (stage_ == Stage::idle || !are_over()) return false;
  if (stage_ == Stage::scattering) {
    sum_mine();
    gather();
    stage_ = Stage::gathering;
  } else {
    stage_ = Stage::idle;
  }
  return true;
}

void Exchange::sum_mine() {
  const std::size_t mine_bytes = part_bytes(node_);
  if (mine_bytes == 0) return;
  for (std::size_t i = 0; i < leaders_.size(); ++i) sources_[i] = incoming_.data() + i * mine_bytes;
  std::byte* mine = part_data(node_);
  sources_[static_cast<std::size_t>(node_)] = mine;
  sum(sources_, std::array{mine}, mine_bytes / element_bytes_, dtype_, order_);
}

void Exchange::gather() {
  for (int node = 0; node < n_nodes_; ++node) {
    if (node == node_) continue;
    const auto i = static_cast<std::size_t>(node);
    const int peer = leaders_[i];
    if (part_bytes(node) > 0) {
      mpi_.receive(requests_[leaders_.size() + i], MpiGroup::data, peer, tag_ + 1, part_data(node), part_bytes(node));
    }
    if (part_bytes(node_) > 0) {
      mpi_.send(requests_[i], MpiGroup::data, peer, tag_ + 1, part_data(node_), part_bytes(node_));
    }
  }
}

}  // namespace lockstep::comm
