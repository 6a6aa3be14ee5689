// How ranks sum: which of them share memory, which exchange by MPI, or whether NCCL sums on the devices. This follows
// from comm.backend, the nodes, and where the gradients are. The memory that this takes can be derived without running
// the ranks, as `lockstep plan` does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/communicator.h"
#include "lockstep/config.h"

namespace lockstep::comm {

// The rank table: host, node and local rank of every rank. Each rank has a copy.

struct RankTable {
  struct Row {
    std::string host;
    int node = 0;
    int local_rank = 0;
  };
  int rank = 0;
  std::vector<Row> rows;                // one per rank
  std::vector<std::vector<int>> nodes;  // the ranks of each node in ascending order; the first is its leader

  int size() const { return static_cast<int>(rows.size()); }
  int n_nodes() const { return static_cast<int>(nodes.size()); }
  const Row& mine() const { return rows[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& my_node() const { return nodes[static_cast<std::size_t>(mine().node)]; }
  bool is_leader() const { return mine().local_rank == 0; }
  /// "rank 2 on node1"
  std::string name(int rank_of) const {
    return "rank " + std::to_string(rank_of) + " on " + rows[static_cast<std::size_t>(rank_of)].host;
  }
};

/// host: gradients are in host memory and are summed there. staged: gradients are in device memory; they are copied to
/// the host, summed there and copied back. nccl: gradients are in device memory and are summed by NCCL.
enum class Transport : std::uint8_t { host, staged, nccl };

struct Topology {
  Transport transport = Transport::host;
  std::vector<std::vector<int>> nodes{{0}};  // ranks of the world; with comm.backend=mpi, one rank per node
  int node = 0;
  int local_rank = 0;
  DType wire = DType::fp32;   // the narrowest type in which slices travel between nodes
  bool is_tree = false;       // the two orders are parts of the requested tree order
  SumOrder order_in_node{};   // over the ranks of this node
  SumOrder order_of_nodes{};  // over the sums of the nodes

  int n_ranks() const;
  int n_nodes() const { return static_cast<int>(nodes.size()); }
  int local_size() const { return static_cast<int>(nodes[static_cast<std::size_t>(node)].size()); }

  /// For nccl: some slices, or all, are summed in an order that Lockstep chooses (device_exchange.h).
  bool uses_device_exchange() const { return is_tree || (wire != DType::fp32 && n_nodes() > 1); }

  /// Between nodes a slice is cut into chunks of chunk_bytes(). At most kExchangesInFlight of them are exchanged at the
  /// same time: fewer cannot hide the queues of a network interface (3: 1.45 s for 100 MB on 2 nodes with 1 Gbit/s,
  /// 24: 0.88 s).
  static constexpr int kExchangesInFlight = 24;
  std::size_t chunk_bytes() const;

  /// The buffers that this rank's communicator allocates: for what other ranks send, and the ring of a staged one.
  std::size_t buffer_bytes() const;

  /// ", fixed tree order, gradients sent as bf16" for Communicator::describe(); empty for the defaults.
  std::string describe_order_and_wire() const;
};

/// Uses the nodes of the rank table. With comm.backend=mpi, if the ranks of a node are not a subtree of the order, or
/// if there are several nodes and the order has rounds, every rank becomes a node of its own. `space`: where the
/// gradients are, Backend::memory_space().
Topology topology_of(const Config::Comm& config, const RankTable& ranks, const SumOrder& order,
                     MemorySpace space = MemorySpace::host);

/// The rank table of rank 0 for ranks that do not run. They are placed on the nodes in consecutive blocks of equal
/// size. If they cannot be divided evenly, the first nodes have one rank more.
RankTable planned_ranks(int ranks, int nodes);

}  // namespace lockstep::comm
