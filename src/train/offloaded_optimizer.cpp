#include "train/offloaded_optimizer.h"

#include <algorithm>
#include <new>
#include <ranges>
#include <utility>

namespace lockstep::train {
namespace {

/// The bytes of each kind, one after the other.
struct Sizes {
  explicit Sizes(const StepPlan& plan)
      : masters(graph::aligned(plan.shard().n_stored() * sizeof(float))),
        state(static_cast<std::size_t>(plan.optimizer().n_states()) * plan.shard().n_stored() *
              size_bytes(plan.optimizer().state_dtype)),
        gradients(plan.summed_bytes()),
        weights(plan.shard().n_stored() * size_bytes(plan.compute_dtype())) {}
  static constexpr std::size_t kScalars = graph::aligned(sizeof(StepScalars));
  std::size_t masters, state, gradients, weights;
  std::size_t total() const { return kScalars + masters + graph::aligned(state) + gradients + weights; }
};

}  // namespace

OffloadedOptimizer::Traffic OffloadedOptimizer::traffic(const StepPlan& plan) {
  const Sizes sizes(plan);
  return {.sums = sizes.gradients,
          .weights = sizes.weights,
          .update = 2 * (sizes.masters + sizes.state) + sizes.gradients + sizes.weights};
}

std::size_t OffloadedOptimizer::size_bytes(const StepPlan& plan) { return Sizes(plan).total(); }

OffloadedOptimizer::OffloadedOptimizer(const StepPlan& plan, Backend& backend, graph::ParameterArena& arena)
    : plan_(plan),
      backend_(backend),
      arena_(arena),
      down_(backend.make_stream()),
      work_(backend.make_stream()),
      up_(backend.make_stream()),
      host_stream_(backend.host().make_stream()),
      are_downloaded_(backend.make_event()),
      is_ready_(backend.make_event()),
      memory_(backend.allocate_host(size_bytes(plan), "the optimizer's state")),
      round_(backend.host().make(CastDescription{.from = DType::fp32, .to = plan.compute_dtype()})) {
  const Sizes sizes(plan);
  auto* const begin = static_cast<std::byte*>(memory_->data());
  scalars_ = new (begin) StepScalars;
  scalars_->is_applied = 0;
  masters_ = reinterpret_cast<float*>(begin + Sizes::kScalars);
  state_ = begin + Sizes::kScalars + sizes.masters;
  gradients_ = state_ + graph::aligned(sizes.state);
  weights_ = gradients_ + sizes.gradients;
  const graph::GradientLayout layout = plan.summed_layout();
  for (const comm::Bucket& bucket : plan.buckets()) {
    Part& part = parts_.emplace_back();
    for (std::unique_ptr<Event>* event : {&part.is_summed, &part.is_updated, &part.is_uploaded})
      *event = backend.make_event();
    part.range =
        overlap(bucket.is_sharded() ? bucket.shard(plan.batch().rank) : ElementRange{bucket.begin, bucket.n_elements},
                {0, plan.parameters().n_trainable()});
    if (part.range.n_elements == 0) continue;
    part.stored = plan.summed_at(part.range.begin);
    const std::size_t b = parts_.size() - 1;
    if (!last_) last_ = b;
    part.update = [this, b] {
      for (const Update& update : parts_[b].updates) update.op->apply(update.args, {}, *host_stream_);
      if (b == *last_) scalars_->is_applied = 0;
    };
    part.round = [this, b] {
      const Part& of = parts_[b];
      round_->apply({.source = masters_ + of.stored,
                     .target = weights_ + of.stored * lockstep::size_bytes(plan_.compute_dtype()),
                     .n_elements = of.range.n_elements},
                    {}, *host_stream_);
    };
    for (OptimizerDescription d : plan.optimizers()) {
      d.segments = cut_to(d.segments, part.range);
      if (d.segments.empty()) continue;
      for (ParameterSegment& segment : d.segments)
        segment.stored_begin = part.stored + (segment.begin - part.range.begin);
      // The update counts elements from the first one on, whatever their type is.
      const std::size_t first = d.gradient_dtype == DType::fp32 ? layout.n_narrow : 0;
      part.updates.push_back({.op = backend.host().make(d),
                              .args = {.parameters = masters_,
                                       .weights = weights_,
                                       .gradients = gradients_ + layout.offset_bytes(first) -
                                                    first * lockstep::size_bytes(d.gradient_dtype),
                                       .state = state_,
                                       .scalars = scalars_}});
    }
  }
}

OffloadedOptimizer::~OffloadedOptimizer() {
  for (Stream* stream : {down_.get(), work_.get(), up_.get()}) stream->synchronize();
}

TypedPointer OffloadedOptimizer::state(int number) const {
  const DType dtype = plan_.optimizer().state_dtype;
  return {state_ + static_cast<std::size_t>(number) * plan_.shard().n_stored() * lockstep::size_bytes(dtype), dtype};
}

void OffloadedOptimizer::download(std::size_t bucket, const GradientAccumulator& sums, Stream& stream) {
  const Part& part = parts_[bucket];
  if (part.range.n_elements == 0) return;
  part.is_summed->record(stream);
  down_->wait(*part.is_summed);
  const TypedPointer from = sums.sum_at(part.range.begin);
  backend_.copy(graph::GradientArena{gradients_, plan_.summed_layout()}.at(part.stored).data, from.data,
                part.range.n_elements * lockstep::size_bytes(from.dtype), *down_);
}

void OffloadedOptimizer::end_downloads(const StepScalars* scalars, Stream& stream) {
  backend_.copy(scalars_, scalars, sizeof(StepScalars), stream);
  are_downloaded_->record(*down_);
  stream.wait(*are_downloaded_);
}

void OffloadedOptimizer::queue(std::function<void()> Part::*work, Stream& stream) {
  is_ready_->record(stream);
  work_->wait(*is_ready_);
  for (const Part& part : parts_ | std::views::reverse) {
    if (part.range.n_elements == 0) continue;
    backend_.run_on_host(part.*work, *work_);
    part.is_updated->record(*work_);
    upload(part);
  }
}

void OffloadedOptimizer::update(Stream& stream) { queue(&Part::update, stream); }

void OffloadedOptimizer::upload(const Part& part) {
  const std::size_t element = lockstep::size_bytes(plan_.compute_dtype());
  const graph::ParameterArena::Update target = arena_.update();
  up_->wait(*part.is_updated);
  backend_.copy(static_cast<std::byte*>(target.compute_weights) + arena_.stored_weight(part.range.begin) * element,
                weights_ + part.stored * element, part.range.n_elements * element, *up_);
  const std::size_t first = plan_.parameters().n_in_compute_type();  // of those that ops read in fp32
  const ElementRange wide = overlap(part.range, {first, plan_.parameters().n_trainable() - first});
  if (wide.n_elements > 0)
    backend_.copy(target.masters + (wide.begin - arena_.first_master()),
                  masters_ + part.stored + (wide.begin - part.range.begin), wide.n_elements * sizeof(float), *up_);
  part.is_uploaded->record(*up_);
}

void OffloadedOptimizer::wait_for_weights(std::size_t bucket, Stream& stream) {
  if (parts_[bucket].range.n_elements > 0) stream.wait(*parts_[bucket].is_uploaded);
}

void OffloadedOptimizer::finish(Stream& stream) {
  if (std::exchange(is_expected_, false)) queue_alone(&Part::update, stream);
}

void OffloadedOptimizer::refresh(Stream& stream) {
  if (std::exchange(is_stale_, false)) queue_alone(&Part::round, stream);
}

void OffloadedOptimizer::queue_alone(std::function<void()> Part::*work, Stream& stream) {
  queue(work, stream);
  for (std::size_t b = 0; b < parts_.size(); ++b) wait_for_weights(b, stream);
}

}  // namespace lockstep::train
