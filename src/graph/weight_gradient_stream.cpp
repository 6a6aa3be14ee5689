// Weight gradients on a second stream. Nothing in the backward pass reads a weight's gradient, so it can run while the
// other stream continues with the gradients of activations and with norms:
//
//   stream          ... norm k | fork, rest of k | norm k-1 | fork, rest of k-1 | norm k-2 | join k, fork, rest of k-2
//   second stream                | gradient of weight k     | gradient of weight k-1       | ...
//
// A fork is an event that the second stream waits for: all that the weight gradient reads is complete. A join is an
// event that the first stream waits for. A weight gradient is joined before kForksInFlight further ones have been
// forked, before anything overwrites a tensor that it reads, and at the end of the backward pass. Until then the memory
// plan gives the memory of these tensors to no other tensor. What reads the gradients of parameters earlier comes after
// a join of all (StepList). Each stream has its own workspace, and the second one runs one weight gradient at a time.
#include <algorithm>

#include "graph/graph.h"
#include "lockstep/error.h"

namespace lockstep::graph {

namespace {

/// Two forks give the second stream enough work while the first one computes norms, and keep the gradients of at most
/// two activations in memory for longer.
constexpr std::size_t kForksInFlight = 2;

}  // namespace

/// The order of the additions to a gradient does not change, because only weights with a single writer are forked.
void Graph::choose_forked_nodes() {
  if (!training() || !options_.weight_gradient_stream) return;
  for (auto& node : nodes_) {
    const Node::WeightGradient part = node->weight_gradient_part();
    node->is_forked_ = part.parameter != nullptr && has_backward(*node) &&
                       parameters_[part.parameter->id()].trainable && part.parameter->is_first_writer_ &&
                       part.parameter->is_last_writer_;
  }
}

void Graph::plan_forks() {
  const std::vector<Entry>& entries = order_.entries();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Node& forked = node(entries[i].node);
    if (entries[i].phase != Phase::backward || !forked.is_forked_) continue;
    std::vector<TensorId> reads = forked.weight_gradient_part().reads;
    reads.push_back(forked.saved_);
    std::erase(reads, kNoTensor);
    forks_.push_back({.begin = i, .end = entries.size(), .reads = std::move(reads)});
  }
  for (std::size_t f = 0; f < forks_.size(); ++f) {
    Fork& fork = forks_[f];
    if (f + kForksInFlight < forks_.size()) fork.end = forks_[f + kForksInFlight].begin;
    for (std::size_t i = fork.begin; i < fork.end; ++i) {
      const bool overwrites = std::ranges::any_of(node(entries[i].node).accesses_, [&](const auto& a) {
        return (a.phase == Phase::backward) == (entries[i].phase == Phase::backward) && a.access != Access::read &&
               std::ranges::find(fork.reads, a.tensor) != fork.reads.end();
      });
      if (overwrites) fork.end = i;
    }
    require(fork.end > fork.begin, ErrorCode::internal, "{} overwrites what its weight gradient reads",
            node(entries[fork.begin].node).name());
  }
}

}  // namespace lockstep::graph
