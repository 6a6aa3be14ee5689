// What the exchanges of a step send between nodes, which is what the network limits. `lockstep plan` reports it.
#pragma once

#include <span>

#include "comm/buckets.h"
#include "comm/topology.h"
#include "lockstep/dtype.h"

namespace lockstep::comm {

/// The size of the buckets of a step, in the types in which they travel.
double exchanged_bytes(std::span<const Bucket> buckets);

/// Bytes that are sent to other nodes.
struct Traffic {
  double per_node = 0;  // of the largest node
  double per_rank = 0;  // of the rank that sends most; with one network card per rank, what that card sends
};

/// The traffic for the buckets of one step. `weights`: the type in which the weights of sharded buckets are gathered.
///
/// N nodes of L ranks each, n = N L, and a bucket of B bytes in the type in which it travels:
///   NCCL's ring          2 (n-1)/n B per node, divided among its ranks
///   16-bit gradients     2 (N-1)/N B per node, divided among its ranks (device_exchange.h)
///   fixed order          2 (n-L)/n B per rank
///   CPUs, or staged      2 (N-1)/N B per node, by its leader
/// A reduce-scatter or an all-gather of NCCL sends half of an all-reduce. A reduce-scatter of leaders sends
/// (N-1)/N (1 + 1/N) B: the parts of each sum, and then, out of the 1/N of the totals that a leader computes, those
/// that other nodes need.
Traffic traffic_between_nodes(const Topology& topology, std::span<const Bucket> buckets, DType weights);

}  // namespace lockstep::comm
