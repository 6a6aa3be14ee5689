// Which ranks sum through shared memory, and which by MPI between such groups, or whether devices do it by NCCL:
// comm.backend, the nodes and where the gradients lie decide. What that takes of memory follows, so that
// `lockstep plan` can tell it of ranks that do not run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/ranks.h"
#include "lockstep/communicator.h"
#include "lockstep/config.h"

namespace lockstep::comm {

/// host: gradients lie in the host's memory, and are summed there. staged: a device's are copied there and back.
enum class Transport : std::uint8_t { host, staged, nccl };

struct Topology {
  Transport transport = Transport::host;
  std::vector<std::vector<int>> nodes{{0}};  // ranks of the world; with comm.backend=mpi each rank is a node of its own
  int node = 0;
  int local_rank = 0;
  DType wire = DType::fp32;   // the narrowest that slices take between nodes
  bool is_tree = false;       // the two orders are parts of one that was asked for
  SumOrder order_in_node{};   // over this node's ranks
  SumOrder order_of_nodes{};  // over the nodes' sums

  int n_ranks() const;
  int n_nodes() const { return static_cast<int>(nodes.size()); }
  int local_size() const { return static_cast<int>(nodes[static_cast<std::size_t>(node)].size()); }

  /// nccl: slices, or those of a narrow wire, are summed in an order of ours (device_exchange.h), not in NCCL's.
  bool is_exchanged() const { return is_tree || (wire != DType::fp32 && n_nodes() > 1); }

  /// Between nodes a slice is cut into chunks of this size, so many of which are under way at once.
  static constexpr int kExchangesInFlight = 3;
  std::size_t chunk_bytes() const;

  /// Of a node's leader: for what other nodes send.
  std::size_t buffer_bytes() const;
  /// What a rank touches of other ranks' regions when it sums all `region_bytes` of its own.
  std::size_t mapped_peer_bytes(std::size_t region_bytes) const;
};

Transport transport_of(const Config::Comm& config, int n_ranks, MemorySpace space);

/// Nodes as they are; with comm.backend=mpi, or where nodes do not fit the order, every rank as a node of its own.
/// `space`: of the gradients, Backend::memory_space().
Topology topology_of(const Config::Comm& config, const RankTable& ranks, const SumOrder& order,
                     MemorySpace space = MemorySpace::host);

/// Rank 0 of ranks that do not run, in equal blocks on nodes; the first nodes have the rank more.
RankTable supposed_ranks(int ranks, int nodes);

}  // namespace lockstep::comm
