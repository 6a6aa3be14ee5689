// Buckets of the gradient arena, which are all-reduced while the backward pass is still running.
//
// Gradients are stored in the order in which the backward pass finishes them (DESIGN, decision 4), so a bucket is a
// contiguous slice. It ends at the boundary of a tensor, as soon as it holds at least bucket_bytes or the next tensor
// has another type or wire type. A tensor of at least two buckets' bytes, such as an embedding, is divided into
// several. The all-reduce of a bucket starts when its last writer is done.
//
// Where the optimizer is sharded (train.shard), a bucket is reduce-scattered instead, and each rank gets the sum of its
// shard. Shards are equal and consist of whole tiles of the gradient norm (ClipNorm), so these buckets end at tiles of
// the arena, wherever tensors end. What is left of the tensors that can be sharded is less than one tile per rank. It
// is all-reduced, and every rank keeps its state. Between two units of tensors, a bucket of one tile per rank has the
// end of one and the beginning of the other, so that a unit whose weights are gathered needs little of its neighbours.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "comm/topology.h"
#include "lockstep/communicator.h"
#include "lockstep/dtype.h"
#include "lockstep/ops/parameter_segment.h"

namespace lockstep::comm {

struct Bucket {
  std::size_t begin = 0, n_elements = 0;  // of the gradient arena
  DType dtype = DType::fp32;              // of the gradients
  DType wire = DType::fp32;               // the type in which they are sent: Slice::wire
  int last_tensor = 0;                    // index of the tensor whose gradient completes it
  std::string first_name, last_name;      // for messages
  int n_shards = 1;                       // 1: every rank gets the whole sum

  std::size_t end() const { return begin + n_elements; }
  std::size_t size_bytes() const { return n_elements * lockstep::size_bytes(dtype); }
  bool is_sharded() const { return n_shards > 1; }
  /// Elements of the arena: what the rank gets the sum of.
  ElementRange shard(int rank) const {
    if (!is_sharded()) return {begin, n_elements};
    const ElementRange shard = equal_shard(n_elements, n_shards, rank);
    return {begin + shard.begin, shard.n_elements};
  }
};

struct GradientTensor {
  std::string name;
  std::size_t begin = 0,
              n_elements = 0;  // of the gradient arena; ascending, with only padding between tensors
  DType dtype = DType::fp32;
  DType wire = DType::fp32;
  bool can_be_sharded = false;
  int unit = 0;  // graph::Parameter::unit
};

/// Cuts the arena into buckets. The batch statistics at its end count as tensors too. `n_shards`: the number of shards
/// of each bucket that can be sharded; 1: no bucket is sharded. The tensors that can be sharded come first.
/// A sharded bucket ends where the unit changes.
std::vector<Bucket> make_buckets(const std::vector<GradientTensor>& tensors, std::size_t bucket_bytes,
                                 int n_shards = 1);

// What the exchanges of a step send between nodes, which is what the network limits. `lockstep plan` reports it.

/// The size of the buckets of a step, in the types in which they travel.
double exchanged_bytes(std::span<const Bucket> buckets);

/// Bytes that are sent to other nodes.
struct Traffic {
  double per_node = 0;  // of the largest node
  double per_rank = 0;  // of the rank that sends most; with one network card per rank, what that card sends
};

/// The traffic of one step, which sums the buckets `n_sums` times and gathers `gathered_bytes` of weights from shards.
///
/// N nodes of L ranks each, n = N L, and a bucket of B bytes in the type in which it travels:
///   NCCL's ring          2 (n-1)/n B per node, divided among its ranks
///   16-bit gradients     2 (N-1)/N B per node, divided among its ranks (device_exchange.h)
///   fixed order          2 (n-L)/n B per rank
///   CPUs, or staged      2 (N-1)/N B per node, by its leader
/// A reduce-scatter or an all-gather sends half of an all-reduce.
Traffic traffic_between_nodes(const Topology& topology, std::span<const Bucket> buckets, int n_sums,
                              double gathered_bytes);

}  // namespace lockstep::comm
