#include "graph/shard.h"

#include <algorithm>

#include "graph/memory_plan.h"

namespace lockstep::graph {

Shard::Shard(const ParameterTable& table) { add(0, table.n_trainable()); }

Shard::Shard(const ParameterTable& table, std::span<const ElementRange> pieces, std::size_t whole_begin)
    : is_whole_(false), whole_begin_(whole_begin) {
  for (const ElementRange& piece : pieces) add(piece.begin, piece.n_elements);
  n_own_ = pieces_.size();
  whole_stored_ = n_stored_;
  add(whole_begin_, table.n_trainable() - whole_begin_);
}

StoredWeights StoredWeights::all(const ParameterTable& table) {
  return {.pieces = {{0, table.n_total(), 0}},
          .nf4_pieces = {{0, table.n_nf4_bytes(), 0}},
          .n_elements = table.n_total(),
          .n_nf4_bytes = table.n_nf4_bytes()};
}

std::size_t stored_at(std::span<const ShardPiece> pieces, std::size_t element) {
  const ShardPiece& piece = *(std::ranges::upper_bound(pieces, element, {}, &ShardPiece::begin) - 1);
  return piece.stored + (element - piece.begin);
}

void Shard::add(std::size_t begin, std::size_t n_elements) {
  if (n_elements == 0) return;
  pieces_.push_back({begin, n_elements, n_stored_});
  n_stored_ += aligned(n_elements * sizeof(float)) / sizeof(float);
}

OptimizerDescription Shard::optimizer(const OptimizerDescription& whole) const {
  if (is_whole_) return whole;
  OptimizerDescription own = whole;
  own.n_elements = n_stored_;
  own.segments.clear();
  for (const ShardPiece& piece : pieces_) {
    for (ParameterSegment& segment : cut_to(whole.segments, {piece.begin, piece.n_elements})) {
      segment.stored_begin = piece.stored + (segment.begin - piece.begin);
      own.segments.push_back(segment);
    }
  }
  return own;
}

}  // namespace lockstep::graph
