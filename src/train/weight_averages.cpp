#include "train/weight_averages.h"

namespace lockstep::train {

WeightAverages::WeightAverages(const StepPlan& plan, Backend& backend)
    : backend_(backend), memory_(backend.allocate(plan.n_averages() * sizeof(float), "averages of the weights")) {
  const auto add = [&](std::size_t master, std::size_t stored, std::size_t begin, std::size_t n_elements) {
    if (n_elements == 0) return;
    ranges_.push_back({.master = master,
                       .stored = stored,
                       .n_elements = n_elements,
                       .scratch = begin,
                       .op = backend.make(MovingAverageDescription{.n_elements = n_elements, .momentum = {}})});
  };
  const graph::Shard& shard = plan.shard();
  for (const graph::ShardPiece& piece : shard.own_pieces())
    add(plan.shards_masters() ? piece.stored : piece.begin, piece.stored, piece.begin, piece.n_elements);
  const std::size_t whole = shard.whole_begin(), first_master = plan.parameters().n_with_masters() - plan.n_masters();
  add(whole - first_master, shard.whole_stored(), whole, plan.parameters().n_gradients() - whole);
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

void WeightAverages::swap_with(float* masters, float* scratch, Stream& stream) {
  for (const Range& range : ranges_) {
    const std::size_t size_bytes = range.n_elements * sizeof(float);
    backend_.copy(scratch + range.scratch, masters + range.master, size_bytes, stream);
    backend_.copy(masters + range.master, data() + range.stored, size_bytes, stream);
    backend_.copy(data() + range.stored, scratch + range.scratch, size_bytes, stream);
  }
}

}  // namespace lockstep::train
