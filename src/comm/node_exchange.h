// The sum of one chunk over nodes, computed by the nodes' leaders with MPI: a reduce-scatter followed by an all-gather.
//
// Each leader owns one shard of the chunk. It receives that shard from all other leaders, sums it in the given order of
// nodes, and sends the total to all. Each shard is thus summed by one rank in one order, which gives the same bits
// everywhere and in every run. If the wire type is bf16 or fp16, everything is rounded before it is sent, and the total
// is rounded on its owner too; additions are in fp32.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/mpi_calls.h"
#include "comm/sum.h"
#include "lockstep/dtype.h"

namespace lockstep::comm {

class NodeExchange {
 public:
  /// `leaders`: ranks of the world, one per node. `order`: over nodes. `node`: this one. `tag` and `tag`+1 are used by
  /// this object only.
  NodeExchange(MpiCalls& mpi, const std::vector<int>& leaders, const SumOrder& order, int node, int tag,
               std::size_t chunk_bytes, DType narrowest_wire);

  /// The memory that it allocates.
  static std::size_t buffer_bytes(int n_nodes, std::size_t chunk_bytes, DType narrowest_wire);

  /// Starts the sum, in place, of at most chunk_bytes. `wire`: see Slice::wire.
  void start(std::byte* chunk, std::size_t n_elements, DType dtype, DType wire);
  /// Proceeds without blocking; true if it made progress.
  bool advance();
  bool is_idle() const { return stage_ == Stage::idle; }

 private:
  enum class Stage : unsigned char { idle, scattering, gathering };

  bool transfers_done();
  void sum_my_shard();
  void gather();
  bool is_narrow() const { return wire_ != dtype_; }
  ElementRange shard(int node) const { return shard_of(n_elements_, size_bytes(dtype_), n_nodes_, node); }
  /// What is sent and received of a node's shard: the values in the chunk itself, or their rounded copy.
  std::byte* wire_data(int node) {
    return is_narrow() ? reinterpret_cast<std::byte*>(rounded_.data() + shard(node).begin)
                       : chunk_ + shard(node).begin * size_bytes(dtype_);
  }
  std::size_t wire_bytes(int node) const { return shard(node).n_elements * size_bytes(wire_); }
  float* values(int node) { return reinterpret_cast<float*>(chunk_) + shard(node).begin; }

  MpiCalls& mpi_;
  const std::vector<int>& leaders_;
  const SumOrder& order_;
  const int node_;
  const int n_nodes_;
  const int tag_;
  Stage stage_ = Stage::idle;
  std::byte* chunk_ = nullptr;
  std::size_t n_elements_ = 0;
  DType dtype_ = DType::fp32, wire_ = DType::fp32;
  std::vector<MpiRequest> requests_;                       // (2, nodes): sends, receives
  std::vector<std::byte> incoming_;                        // (nodes, shard): my shard of the other nodes' chunks
  std::vector<std::uint16_t> rounded_, rounded_incoming_;  // chunk_ and incoming_ in the wire type
  std::vector<const std::byte*> sources_;
};

}  // namespace lockstep::comm
