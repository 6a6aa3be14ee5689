// The sum of one chunk over nodes, made by the nodes' leaders with MPI: every leader sends each other one the part of
// the chunk that is theirs to sum, sums its own part in the order of nodes that it was given, and sends the result to
// all. Each part is so summed by one rank, in one order: the same bits everywhere and in every run.
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
           std::size_t chunk_bytes);

  /// What it takes of memory.
  static std::size_t buffer_bytes(int n_nodes, std::size_t chunk_bytes);

  /// In place; at most chunk_bytes.
  void start(std::byte* chunk, std::size_t n_elements, DType dtype);
  /// Goes on without blocking; true when something happened.
  bool advance();
  bool is_idle() const { return stage_ == Stage::idle; }

 private:
  enum class Stage : unsigned char { idle, scattering, gathering };

  bool are_over();
  void sum_mine();
  void gather();
  std::byte* part_data(int node) {
    return chunk_ + part_of(n_elements_, element_bytes_, n_nodes_, node).begin * element_bytes_;
  }
  std::size_t part_bytes(int node) const {
    return part_of(n_elements_, element_bytes_, n_nodes_, node).n_elements * element_bytes_;
  }

  MpiCalls& mpi_;
  const std::vector<int>& leaders_;
  const SumOrder& order_;
  const int node_;
  const int n_nodes_;
  const int tag_;
  Stage stage_ = Stage::idle;
  std::byte* chunk_ = nullptr;
  std::size_t n_elements_ = 0;
  std::size_t element_bytes_ = 4;
  DType dtype_ = DType::fp32;
  std::vector<MpiRequest> requests_;  // (2, nodes): sends, receives
  std::vector<std::byte> incoming_;   // (nodes, part): my part of the others' chunks
  std::vector<const std::byte*> sources_;
};

}  // namespace lockstep::comm
