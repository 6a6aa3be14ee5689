// The sum of one chunk over nodes, made by the nodes' leaders with MPI: every leader sends each other one the part of
// the chunk that is theirs to sum, sums its own part in the order of nodes that it was given, and sends the result to
// all. Each part is so summed by one rank, in one order: the same bits everywhere and in every run. In bf16 or fp16 on
// the wire all that is sent was rounded before, the result also where it stays; sums are fp32.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/mpi_calls.h"
#include "comm/sum.h"
#include "lockstep/dtype.h"

namespace lockstep::comm {

class Exchange {
 public:
  /// `leaders`: ranks of the world, one a node; `node` is this one's; `order`: over nodes. `tag` and `tag`+1 are this
  /// object's alone.
  Exchange(MpiCalls& mpi, const std::vector<int>& leaders, const SumOrder& order, int node, int tag,
           std::size_t chunk_bytes, DType narrowest_wire);

  /// What it takes of memory.
  static std::size_t buffer_bytes(int n_nodes, std::size_t chunk_bytes, DType narrowest_wire);

  /// In place; at most chunk_bytes. `wire`: Slice::wire.
  void start(std::byte* chunk, std::size_t n_elements, DType dtype, DType wire);
  /// Goes on without blocking; true when something happened.
  bool advance();
  bool is_idle() const { return stage_ == Stage::idle; }

 private:
  enum class Stage : unsigned char { idle, scattering, gathering };

  bool are_over();
  void sum_mine();
  void gather();
  bool is_narrow() const { return wire_ != dtype_; }
  Part part(int node) const { return part_of(n_elements_, size_bytes(dtype_), n_nodes_, node); }
  /// What is sent and received of a node's part: in the chunk itself, or rounded beside it.
  std::byte* wire_data(int node) {
    return is_narrow() ? reinterpret_cast<std::byte*>(rounded_.data() + part(node).begin)
                       : chunk_ + part(node).begin * size_bytes(dtype_);
  }
  std::size_t wire_bytes(int node) const { return part(node).n_elements * size_bytes(wire_); }
  float* values(int node) { return reinterpret_cast<float*>(chunk_) + part(node).begin; }

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
  std::vector<std::byte> incoming_;                        // (nodes, part): my part of the others' chunks
  std::vector<std::uint16_t> rounded_, rounded_incoming_;  // chunk_ and incoming_ as they go over the wire
  std::vector<const std::byte*> sources_;
};

}  // namespace lockstep::comm
