// The sum of one chunk over nodes, computed by the nodes' leaders with MPI: a reduce-scatter followed by an all-gather.
//
// Each leader owns one shard of the chunk. It receives that shard from all other leaders, sums it in the given order of
// nodes, and sends the total to all. Each shard is thus summed by one rank in one order, which gives the same bits
// everywhere and in every run. If the wire type is bf16 or fp16, everything is rounded before it is sent, and the total
// is rounded on its owner too; additions are in fp32.
//   If only some nodes need a total, because the collective is itself a reduce-scatter, it is sent to those only.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/mpi_calls.h"
#include "comm/sum.h"
#include "lockstep/dtype.h"

namespace lockstep::comm {

class NodeExchange {
 public:
  /// Elements of the chunk whose total a node needs.
  struct Part {
    int node = 0;
    ElementRange range{};
  };

  /// `leaders`: ranks of the world, one per node. `order`: the order of summation over nodes. `node`: this rank's node.
  /// `tag` and `tag`+1 are used by this object only.
  NodeExchange(MpiCalls& mpi, const std::vector<int>& leaders, const SumOrder& order, int node, int tag,
               std::size_t chunk_bytes, DType narrowest_wire);

  /// Starts the sum, in place, of at most chunk_bytes. `wire`: see Slice::wire. `needed`: the same on all nodes; the
  /// other elements of this node's chunk are then undefined. Empty: every node needs all.
  void start(std::byte* chunk, std::size_t n_elements, DType dtype, DType wire, std::span<const Part> needed = {});
  /// Proceeds without blocking; true if it made progress.
  bool advance();
  bool is_idle() const { return stage_ == Stage::idle; }

 private:
  enum class Stage : unsigned char { idle, scattering, gathering };

  void sum_my_shard();
  void gather();
  void finish_gather();
  /// Calls call(range) for each range that `node` needs of the shard that `owner` has summed, in the same order on both
  /// nodes.
  template <typename Call>
  void for_needed(int node, int owner, const Call& call) const;
  MpiRequest& next_request();
  bool is_narrow() const { return wire_ != dtype_; }
  ElementRange shard(int node) const { return shard_of(n_elements_, size_bytes(dtype_), n_nodes_, node); }
  /// What is sent and received: the values in the chunk itself, or their rounded copy.
  std::byte* wire_data(ElementRange range) {
    return is_narrow() ? reinterpret_cast<std::byte*>(rounded_.data() + range.begin)
                       : chunk_ + range.begin * size_bytes(dtype_);
  }
  std::size_t wire_bytes(ElementRange range) const { return range.n_elements * size_bytes(wire_); }
  float* values(ElementRange range) { return reinterpret_cast<float*>(chunk_) + range.begin; }

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
  std::vector<Part> needed_;
  std::vector<MpiRequest> requests_;  // the first n_requests_ of them are in use
  std::size_t n_requests_ = 0;
  std::vector<std::byte> incoming_;                        // (nodes, shard): my shard of the other nodes' chunks
  std::vector<std::uint16_t> rounded_, rounded_incoming_;  // chunk_ and incoming_ in the wire type
  std::vector<const std::byte*> sources_;
};

}  // namespace lockstep::comm
