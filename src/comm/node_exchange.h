// The sum of one chunk over nodes, computed by the nodes' leaders with MPI: a reduce-scatter, and for an all-reduce an
// all-gather after it.
//
// The chunk consists of parts, each of which is owned by one leader. It receives the part from all other leaders, sums
// it in the given order of nodes, and sends the total to all that need it. Each part is thus summed by one rank in one
// order, which gives the same bits everywhere and in every run. If the wire type is bf16 or fp16, everything is rounded
// before it is sent, and the total is rounded on its owner too; additions are in fp32.
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
  struct Part {
    int node = 0;                 // whose leader owns it
    std::byte* values = nullptr;  // of this node
    std::size_t n_elements = 0;
    std::size_t begin = 0;  // of the entries of a round's open sums; of parts that this node owns
  };
  enum class Totals : unsigned char { for_all, for_owners };

  /// `leaders`: ranks of the world, one per node. `order`: the order of summation over nodes. `node`: this rank's node.
  /// `tag` and `tag`+1 are used by this object only.
  NodeExchange(MpiCalls& mpi, const std::vector<int>& leaders, const SumOrder& order, int node, int tag,
               std::size_t chunk_bytes, DType narrowest_wire);

  /// Starts the sum, in place, of parts with at most chunk_bytes in all, of which each node owns about as much. They
  /// are the same on all nodes. `wire`: see Slice::wire. `of_round`: with one rank per node, and no other wire type.
  void start(std::span<const Part> parts, DType dtype, DType wire, Totals totals, const SumRound& of_round = {});
  /// Proceeds without blocking; true if it made progress.
  bool advance();
  bool is_idle() const { return stage_ == Stage::idle; }

 private:
  enum class Stage : unsigned char { idle, scattering, gathering };

  struct PlacedPart : Part {
    std::size_t place = 0;  // in buffers that have all parts one after the other
  };

  void sum_my_parts();
  void gather();
  void finish_gather();
  MpiRequest& next_request();
  bool is_narrow() const { return wire_ != dtype_; }
  bool is_mine(const PlacedPart& part) const { return part.node == node_; }
  /// What is sent and received: the values themselves, or their rounded copy.
  std::byte* wire_data(const PlacedPart& part) {
    return is_narrow() ? reinterpret_cast<std::byte*>(rounded_.data() + part.place) : part.values;
  }
  std::size_t wire_bytes(const Part& part) const { return part.n_elements * size_bytes(wire_); }
  void round(const PlacedPart& part);
  void widen(const PlacedPart& part);

  MpiCalls& mpi_;
  const std::vector<int>& leaders_;
  const SumOrder& order_;
  const int node_;
  const int n_nodes_;
  const int tag_;
  Stage stage_ = Stage::idle;
  std::vector<PlacedPart> parts_;  // none is empty
  std::size_t n_mine_ = 0;         // elements of this node's
  Totals totals_ = Totals::for_all;
  SumRound round_;
  DType dtype_ = DType::fp32, wire_ = DType::fp32;
  std::vector<MpiRequest> requests_;  // the first n_requests_ of them are in use
  std::size_t n_requests_ = 0;
  std::vector<std::byte> incoming_;                        // (nodes, n_mine_): my parts of the other nodes' chunks
  std::vector<std::uint16_t> rounded_, rounded_incoming_;  // the chunk and incoming_ in the wire type
  std::vector<const std::byte*> sources_;
};

}  // namespace lockstep::comm
