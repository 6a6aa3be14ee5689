// A rank's part of what is sharded with train.shard: the states of the optimizer and, where ops compute in 16 bits, the
// fp32 masters (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, stage
// 1); with train.shard=gradients also the sums of gradients (stage 2), and with train.shard=parameters all weights that
// ops read (stage 3). It follows the buckets: a rank keeps the piece of each reduce-scattered bucket whose gradients it
// gets. What buckets with shards leave over is small, and so are the parameters that ops read in fp32 although they
// compute in 16 bits, such as the scales of norms: every rank has and updates them all.
//
//   arenas that every rank has (gradients, weights)   [ bucket 1 | bucket 2 | ... | whole                ]
//   of rank 1 of 2                                         ^^^^       ^^^^          ^^^^^
//   its stored arenas (states, masters)               [piece 1|piece 2|...|whole]
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "graph/parameters.h"
#include "lockstep/element_range.h"
#include "lockstep/ops/optimizer.h"

namespace lockstep::graph {

struct ShardPiece {
  std::size_t begin = 0, n_elements = 0;  // in arenas that every rank has
  std::size_t stored = 0;                 // in the stored ones
};

/// The place of an element in an arena that stores these pieces, which are ascending. One of them has the element.
std::size_t stored_at(std::span<const ShardPiece> pieces, std::size_t element);

/// Where a rank stores the weights that ops read: the elements of the arena, and the bytes of matrices in NF4. With
/// train.shard=parameters (stage 3), it has its shards only.
struct StoredWeights {
  std::vector<ShardPiece> pieces{}, nf4_pieces{};  // ascending
  std::size_t n_elements = 0, n_nf4_bytes = 0;

  /// All of them.
  static StoredWeights all(const ParameterTable& table);
  /// The place of an element that the rank has.
  std::size_t at(std::size_t element) const { return stored_at(pieces, element); }
};

class Shard {
 public:
  Shard() = default;
  /// Nothing is sharded.
  explicit Shard(const ParameterTable& table);
  /// `pieces`: what this rank has of what is sharded, in ascending order. `whole_begin`: from there on, nothing is.
  Shard(const ParameterTable& table, std::span<const ElementRange> pieces, std::size_t whole_begin);

  /// True if nothing is sharded. Stored arenas are then like the others, and there is one piece.
  bool is_whole() const { return is_whole_; }
  /// In ascending order. The last piece may consist of parameters that all ranks have.
  std::span<const ShardPiece> pieces() const { return pieces_; }
  /// The same without the piece that all ranks have.
  std::span<const ShardPiece> own_pieces() const { return std::span(pieces_).first(n_own_); }
  /// Elements of a stored state.
  std::size_t n_stored() const { return n_stored_; }
  /// The arena's elements from here on are on all ranks.
  std::size_t whole_begin() const { return whole_begin_; }
  /// Where they are in a stored arena that has everything up to the arena's end.
  std::size_t whole_stored() const { return whole_stored_; }

  /// The optimizer of this rank: `whole` with its segments cut to the pieces.
  OptimizerDescription optimizer(const OptimizerDescription& whole) const;

 private:
  void add(std::size_t begin, std::size_t n_elements);

  bool is_whole_ = true;
  std::vector<ShardPiece> pieces_;
  std::size_t n_own_ = 0, n_stored_ = 0, whole_begin_ = 0, whole_stored_ = 0;
};

}  // namespace lockstep::graph
