#include "train/weight_averages.h"

#include <algorithm>

namespace lockstep::train {

WeightAverages::WeightAverages(const StepPlan& plan, Backend& backend)
    : backend_(backend), memory_(backend.allocate(plan.n_averages() * sizeof(float), "averages of the weights")) {
  const auto add = [&](std::size_t master, std::size_t stored, std::size_t n_elements) {
    if (n_elements == 0) return;
    ranges_.push_back({.master = master,
                       .stored = stored,
                       .n_elements = n_elements,
                       .op = backend.make(MovingAverageDescription{.n_elements = n_elements, .momentum = {}})});
  };
  const graph::Shard& shard = plan.shard();
  for (const graph::ShardPiece& piece : shard.own_pieces())
    add(plan.shards_masters() ? piece.stored : piece.begin, piece.stored, piece.n_elements);
  const std::size_t whole = shard.whole_begin(), first_master = plan.parameters().n_with_masters() - plan.n_masters();
  add(whole - first_master, shard.whole_stored(), plan.parameters().n_gradients() - whole);
}

void WeightAverages::update(const float* masters, const StepScalars* scalars, Stream& stream) {
  for (const Range& range : ranges_)
    range.op->apply({.running = data() + range.stored, .batch = masters + range.master, .scalars = scalars}, {},
                    stream);
}

void WeightAverages::start_from(const float* masters, Stream& stream) {
  for (const Range& range : ranges_)
    backend_.copy(data() + range.stored, masters + range.master, range.n_elements * sizeof(float), stream);
}

void WeightAverages::swap_with(float* masters, std::span<float> scratch, Stream& stream) {
  for (const Range& range : ranges_) {
    for (std::size_t begin = 0; begin < range.n_elements; begin += scratch.size()) {
      const std::size_t size_bytes = std::min(scratch.size(), range.n_elements - begin) * sizeof(float);
      float* const master = masters + range.master + begin;
      float* const average = data() + range.stored + begin;
      backend_.copy(scratch.data(), master, size_bytes, stream);
      backend_.copy(master, average, size_bytes, stream);
      backend_.copy(average, scratch.data(), size_bytes, stream);
    }
  }
}

}  // namespace lockstep::train
