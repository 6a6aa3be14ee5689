#include "comm/topology.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "comm/device_exchange.h"
#include "comm/staged_communicator.h"
#include "comm/sum.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kSmallestChunkBytes = std::size_t{1} << 20;
constexpr std::size_t kSmallestShardBytes = std::size_t{64} << 10;  // the smallest shard that a leader sends to another

Topology one_rank_per_node(const RankTable& ranks, const SumOrder& order) {
  Topology out{.nodes = {}, .node = ranks.rank};
  for (int r = 0; r < ranks.size(); ++r) out.nodes.push_back({r});
  out.is_tree = order.size() > 0;
  out.order_in_node = sequential_order(1);
  out.order_of_nodes = out.is_tree ? order : sequential_order(ranks.size());
  return out;
}

/// Splits the order at node boundaries. No value if the ranks of some node are not a subtree of the order.
std::optional<GroupedOrder> group_by_node(const SumOrder& order, const RankTable& ranks) {
  std::vector<int> sizes;
  int next = 0;
  for (const std::vector<int>& node : ranks.nodes) {
    for (const int rank : node) {
      if (rank != next++) return std::nullopt;
    }
    sizes.push_back(static_cast<int>(node.size()));
  }
  return group(order, sizes);
}

Transport transport_of(const Config::Comm& config, int n_ranks, MemorySpace space) {
  const std::string& backend = config.backend;
  constexpr std::array<std::string_view, 5> kBackends{"auto", "nccl", "staged", "shared", "mpi"};
  require(std::ranges::find(kBackends, backend) != kBackends.end(), ErrorCode::config_conflict,
          "comm.backend is '{}'; it must be auto, nccl, staged, shared or mpi", backend);
  if (space == MemorySpace::host) {
    require(backend != "nccl", ErrorCode::config_conflict,
            "comm.backend=nccl sums on GPUs, but this run computes on the CPU: set device=cuda or comm.backend=auto");
    return backend == "staged" ? Transport::staged : Transport::host;
  }
  if (n_ranks == 1 && backend != "nccl") return Transport::host;  // there is nothing to sum
  if (backend == "auto" || backend == "nccl") return Transport::nccl;
  return Transport::staged;
}

}  // namespace

int Topology::n_ranks() const {
  std::size_t n = 0;
  for (const std::vector<int>& node_ranks : nodes) n += node_ranks.size();
  return static_cast<int>(n);
}

std::size_t Topology::chunk_bytes() const { return std::max(kSmallestChunkBytes, kSmallestShardBytes * nodes.size()); }

DeviceExchange::Plan device_exchange_plan(const Topology& topology) {
  return {.nodes = topology.nodes,
          .order = topology.order_of_nodes,
          .is_fixed = topology.is_tree,
          .narrowest_wire = topology.wire};
}

std::size_t Topology::buffer_bytes() const {
  if (transport == Transport::nccl)
    return uses_device_exchange() ? DeviceExchange::buffer_bytes(device_exchange_plan(*this)) : 0;
  const std::size_t ring_bytes = transport == Transport::staged ? StagedCommunicator::kRingBytes : 0;
  if (n_nodes() == 1 || local_rank != 0) return ring_bytes;
  return ring_bytes + kExchangesInFlight * exchange_buffer_bytes(chunk_bytes(), n_nodes(), wire);
}

std::string Topology::describe_order_and_wire() const {
  return fmt::format("{}{}", is_tree ? ", fixed tree order" : "",
                     n_nodes() > 1 && wire != DType::fp32 ? fmt::format(", gradients sent as {}", name(wire)) : "");
}

namespace {

/// The order covers all ranks, regardless of their nodes.
Topology place_devices(const RankTable& ranks, const SumOrder& order) {
  Topology out{.nodes = ranks.nodes, .node = ranks.mine().node, .local_rank = ranks.mine().local_rank};
  out.is_tree = order.size() > 1;
  out.order_of_nodes = out.is_tree ? order : sequential_order(ranks.size());
  return out;
}

Topology place(const Config::Comm& config, const RankTable& ranks, const SumOrder& order) {
  if (config.backend == "mpi" || (order.has_rounds && ranks.n_nodes() > 1)) return one_rank_per_node(ranks, order);
  require(config.backend != "shared" || ranks.n_nodes() == 1, ErrorCode::config_conflict,
          "comm.backend=shared requires all ranks on one node, but they are on {} nodes: set comm.backend=auto",
          ranks.n_nodes());
  Topology out{.nodes = ranks.nodes, .node = ranks.mine().node, .local_rank = ranks.mine().local_rank};
  out.order_in_node = sequential_order(out.local_size());
  out.order_of_nodes = sequential_order(out.n_nodes());
  if (order.size() == 0) return out;
  std::optional<GroupedOrder> grouped = group_by_node(order, ranks);
  if (!grouped) return one_rank_per_node(ranks, order);
  out.is_tree = true;
  out.order_in_node = std::move(grouped->inner[static_cast<std::size_t>(out.node)]);
  out.order_of_nodes = std::move(grouped->outer);
  return out;
}

}  // namespace

Topology topology_of(const Config::Comm& config, const RankTable& ranks, const SumOrder& order, MemorySpace space) {
  const Transport transport = transport_of(config, ranks.size(), space);
  Topology out = transport == Transport::nccl ? place_devices(ranks, order) : place(config, ranks, order);
  out.transport = transport;
  if (config.gradients != "fp32") out.wire = config.gradients == "bf16" ? DType::bf16 : DType::fp16;
  return out;
}

RankTable planned_ranks(int ranks, int nodes) {
  RankTable table;
  table.nodes.resize(static_cast<std::size_t>(nodes));
  for (int node = 0; node < nodes; ++node) {
    std::vector<int>& of_node = table.nodes[static_cast<std::size_t>(node)];
    const int n = ranks / nodes + (node < ranks % nodes ? 1 : 0);
    for (int local_rank = 0; local_rank < n; ++local_rank) {
      of_node.push_back(table.size());
      table.rows.push_back({.host = "", .node = node, .local_rank = local_rank});
    }
  }
  return table;
}

}  // namespace lockstep::comm
