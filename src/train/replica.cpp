#include "train/replica.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

#include "lockstep/error.h"
#include "lockstep/log.h"
#include "lockstep/trace.h"
#include "tasks/language_modelling/text_sampler.h"

namespace lockstep::train {

namespace {

const std::string kLossLabel = "loss", kEvaluationLabel = "evaluation", kNormLabel = "gradient norm";
const std::string kSquaresSpan = "sum of squares", kNormSpan = "gradient norm", kOptimizerSpan = "optimizer",
                  kWidenSpan = "gradients in fp32", kStatisticsSpan = "running statistics",
                  kAveragesSpan = "averages of the weights";
constexpr int kNoSlot = -1;

/// The part of a bucket that a rank sums for the gradient norm: its own shard of a sharded bucket, and any other bucket
/// as a whole.
ElementRange range_of_norm(const comm::Bucket& bucket, const StepPlan& plan) {
  if (bucket.is_sharded()) return bucket.shard(plan.batch().rank);
  const std::size_t end = std::min(bucket.end(), plan.parameters().n_trainable());
  return {bucket.begin, end > bucket.begin ? end - bucket.begin : 0};
}

}  // namespace

Replica::Replica(StepPlan& plan, Backend& backend, Communicator& communicator)
    : plan_(plan),
      backend_(backend),
      communicator_(communicator),
      stream_(backend.make_stream()),
      parameter_arena_(plan.parameters(), plan.compute_dtype(), backend, plan.n_masters(), plan.shard(),
                       &communicator) {
  const graph::ParameterTable& table = plan.parameters();
  const MemoryReport memory = plan.memory();
  gradients_ = communicator.allocate(memory.gradients + plan.exchange_bytes(), "gradients");
  if (memory.low_precision_gradients > 0) {
    low_precision_gradients_ = backend.allocate(memory.low_precision_gradients, "gradients in 16 bits");
    backend.fill_zero(low_precision_gradients_->data(), memory.low_precision_gradients,
                      *stream_);  // clears the padding between tensors
    widen_ = backend.make(CastDescription{.from = plan.compute_dtype(), .to = DType::fp32});
  }
  optimizer_memory_ = backend.allocate(memory.optimizer, "optimizer state");
  activations_ = backend.allocate(memory.activations, "activations");
  optimizer_ = backend.make(plan.shard().optimizer(plan.optimizer()));
  ClipNormDescription norm{.segments = plan.optimizer().segments,
                           .max_norm = static_cast<float>(plan.config().train.clip_norm),
                           .loss_scaling = plan.loss_scaling().value_or(LossScaling{})};
  for (const comm::Bucket& bucket : plan.buckets()) {
    const ElementRange range = range_of_norm(bucket, plan);
    norm_ranges_.push_back(range.n_elements > 0 ? static_cast<int>(norm.ranges.size()) : -1);
    if (range.n_elements > 0) norm.ranges.push_back(range);
  }
  clip_norm_ = backend.make(norm);
  const std::size_t n_statistics = table.n_gradients() - table.n_trainable();
  moving_average_ =
      backend.make(MovingAverageDescription{.n_elements = n_statistics, .momentum = plan.task().statistics_momentum()});
  if (plan.averages() == Averages::kept) averages_ = std::make_unique<WeightAverages>(plan, backend);
  hash_ =
      backend.make(HashDescription{.size_bytes = plan.shards_masters() ? memory.compute_weights : memory.parameters});
  workspace_ = backend.allocate(std::max({memory.workspace, optimizer_->memory_requirements().forward_workspace_bytes,
                                          hash_->memory_requirements().forward_workspace_bytes}),
                                "workspace");
  if (plan.uses_second_stream()) {
    second_stream_ = backend.make_stream();
    second_workspace_ = backend.allocate(memory.second_workspace, "workspace of weight gradients");
  }

  state_ = static_cast<StepState*>(optimizer_memory_->data());
  if (plan.loss_scaling()) loss_scale_ = &state_->loss_scale;
  set_loss_scale({.scale = static_cast<float>(plan.config().loss_scale.initial)});
  std::byte* exchange = static_cast<std::byte*>(gradients_->data()) + memory.gradients;
  const graph::Bindings bindings{
      .parameters = parameter_arena_.masters(),
      .first_parameter = parameter_arena_.first_master(),
      .compute_weights = parameter_arena_.compute_weights(),
      .compute_dtype = parameter_arena_.compute_dtype(),
      .nf4_weights = parameter_arena_.nf4_weights(),
      .low_precision_gradients = low_precision_gradients_ ? low_precision_gradients_->data() : nullptr,
      .exchange = exchange,
      .activations = static_cast<std::byte*>(activations_->data()),
      .workspace = workspace_->data(),
      .second_stream = second_stream_.get(),
      .second_workspace = second_workspace_ ? second_workspace_->data() : nullptr,
      .scalars = &state_->scalars,
      .loss_scale = loss_scale_,
      .communicator = &communicator};
  for (PlannedGraph* planned : plan.all()) planned->graph->bind(bindings);
  if (plan.sampler() != nullptr) plan.sampler()->bind(bindings);
  // The sums of all graphs are at the same position.
  sums_ = reinterpret_cast<StepSums*>(exchange + plan.largest().sums_offset);
  tile_sums_ = reinterpret_cast<double*>(exchange + plan.tile_sums_offset());
  accumulator_ = std::make_unique<GradientAccumulator>(plan, backend, gradient_arena(), &sums_->loss);
  reducer_ = std::make_unique<comm::GradientReducer>(communicator, backend, gradient_arena(), plan.buckets());
  sums_ready_ = backend.make_event();
  sums_done_ = communicator.make_event();
  if (!plan.shard().is_whole()) {
    const bool has_weights = plan.compute_dtype() != DType::fp32;
    void* const weights = has_weights ? parameter_arena_.update().compute_weights : parameter_arena_.update().masters;
    weight_gather_ =
        std::make_unique<WeightGather>(plan, backend, communicator, weights, plan.compute_dtype(), "weights");
    state_gather_ = std::make_unique<WeightGather>(plan, backend, communicator, gradient_arena(), DType::fp32, "state");
    tiles_ready_ = backend.make_event();
    tiles_done_ = communicator.make_event();
  }
  uploader_ = std::make_unique<Uploader>(backend, plan.upload_bytes());
  for (const PlannedGraph* planned : plan.all())
    upload_targets_.resize(std::max(upload_targets_.size(), planned->fields.size()));
  host_memory_ = backend.allocate_host(slots_.size() * sizeof(HostStep), "scalars and reports of steps");
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].host = new (static_cast<HostStep*>(host_memory_->data()) + i) HostStep;
    slots_[i].done = backend.make_event();
  }
  backend.freeze();
  device_trace_ = DeviceTrace::make(backend, *stream_);
  for (PlannedGraph* planned : plan.all()) planned->graph->set_observer(device_trace_.get());
}

Replica::~Replica() { backend_.unfreeze(); }

float* Replica::optimizer_state() const {
  return reinterpret_cast<float*>(static_cast<std::byte*>(optimizer_memory_->data()) +
                                  graph::aligned(sizeof(StepState)));
}

void Replica::begin_step(const BatchShape& shape, const StepScalars& scalars, const StepFlags& flags) {
  communicator_.check();
  store_written();
  running_.shape = shape;
  running_.micro_batch = -1;
  current_ = 1 - current_;
  Slot& slot = slots_[static_cast<std::size_t>(current_)];
  slot.done->synchronize();  // does not wait: the result of the previous step in this slot was read long ago
  if (device_trace_) device_trace_->begin_step(current_);
  slot.host->scalars = scalars;
  slot.host->flags = flags;
  backend_.copy_to_device(&state_->scalars, &slot.host->scalars, sizeof(StepScalars), *stream_);
  backend_.copy_to_device(&sums_->flags, &slot.host->flags, sizeof(StepFlags), *stream_);
}

void Replica::prepare(const PlannedGraph& planned, const data::Batch& batch) {
  parameter_arena_.refresh(*stream_);
  const graph::Graph& graph = *planned.graph;
  for (std::size_t i = 0; i < planned.fields.size(); ++i) upload_targets_[i] = graph.tensor(planned.fields[i]);
  uploader_->upload(batch, planned.batch, graph.options().batch, upload_targets_, *stream_);
}

CapturedGraph& Replica::captured_graph() {
  const bool gathers = weight_gather_ && running_.micro_batch == 0;
  const bool has_exchanges = running_.is_last() || running_.planned->has_exchanges() || gathers;
  // The last micro-batch measures time by the events of the slot. Which one is the last depends on the rank.
  std::unique_ptr<CapturedGraph>& graph = captured_graphs_[{.global_batch = running_.shape.global_batch,
                                                            .number = running_.micro_batch,
                                                            .slot = has_exchanges ? current_ : kNoSlot}];
  if (!graph) {
    if (communicator_.is_capturable() || !has_exchanges)
      graph = backend_.make_captured_graph();
    else
      graph = std::make_unique<EagerGraph>();
  }
  return *graph;
}

void Replica::end_capture() {
  if (running_.capturing) running_.capturing->end(*stream_);
  running_.capturing = nullptr;
}

void Replica::forward(const data::Batch& batch) {
  const int number = ++running_.micro_batch;
  running_.planned = &plan_.training(batch.n_samples, running_.shape.global_micro_batch_size(number));
  prepare(*running_.planned, batch);
  CapturedGraph& captured = captured_graph();
  running_.capturing = captured.begin(*stream_) ? &captured : nullptr;
  if (!running_.capturing) return;
  const trace::Span span(trace::Kind::forward, "forward");
  if (weight_gather_ && number == 0) {
    weight_gather_->start(*stream_);
    running_.planned->graph->forward(*stream_, accumulator_->target(number), [this](graph::ParameterId id) {
      weight_gather_->wait_for(parameters()[id].begin, parameters()[id].n_elements, *stream_);
    });
    weight_gather_->wait_for_all(*stream_);
  } else {
    running_.planned->graph->forward(*stream_, accumulator_->target(number));
  }
  accumulator_->add_loss(number, *stream_);
}

void Replica::backward() {
  if (!running_.capturing) return;
  if (running_.is_last()) return backward_of_last();
  {
    const trace::Span span(trace::Kind::backward, "backward");
    const int number = running_.micro_batch;
    running_.planned->graph->backward(*stream_, accumulator_->target(number), nullptr);
    widen_gradients({0, parameters().n_trainable()});
    accumulator_->add_gradients(number, *stream_);
  }
  end_capture();
}

void Replica::backward_of_last() {
  const trace::Span span(trace::Kind::backward, "backward");
  int tensor = 0;  // the gradients are finished in the order of the arena, apart from those at its end
  const auto done = [&] {
    reducer_->tensor_done(tensor++, *stream_, [this](const comm::Bucket& bucket) {
      running_.planned->graph->join_weight_gradients(*stream_);
      widen_gradients({bucket.begin, bucket.n_elements});
      accumulator_->finish(bucket, *stream_);
    });
  };
  running_.planned->graph->backward(*stream_, accumulator_->target(running_.micro_batch), [&](graph::ParameterId id) {
    if (parameters()[id].begin < parameters().n_in_compute_type()) done();
  });
  const std::size_t n_tensors = parameters().order().size() + parameters().n_trained_statistics();
  while (static_cast<std::size_t>(tensor) < n_tensors) done();
}

void Replica::widen_gradients(ElementRange range) {
  const graph::ParameterGradients target = accumulator_->target(running_.micro_batch);
  for (const ElementRange& narrow : running_.planned->graph->low_precision_gradients()) {
    const std::size_t begin = std::max(range.begin, narrow.begin), end = std::min(range.end(), narrow.end());
    if (begin >= end) continue;
    const auto* source = static_cast<const std::byte*>(low_precision_gradients_->data());
    graph::observed(device_trace_.get(), trace::Kind::backward, kWidenSpan, [&] {
      widen_->apply({.source = source + begin * size_bytes(plan_.compute_dtype()),
                     .target = target.arena + begin,
                     .n_elements = end - begin,
                     .accumulate = target.mode == GradientMode::accumulate},
                    {}, *stream_);
    });
  }
}

void Replica::reduce() {
  if (!running_.capturing) return;
  StepReport& report = state_->report;  // addresses on the device
  backend_.copy_to_device(&report.local, &sums_->loss, sizeof(LossSums), *stream_);
  sums_ready_->record(*stream_);
  communicator_.all_reduce_async({.data = sums_, .n_elements = StepSums::kElements, .dtype = DType::fp64}, *sums_ready_,
                                 *sums_done_, kLossLabel);
  if (weight_gather_) backend_.fill_zero(tile_sums_, plan_.tile_sums_bytes(), *stream_);
  {
    const trace::Span span(trace::Kind::wait, "communication");
    reducer_->finish(*stream_, current_, sums_done_.get(), [this](std::size_t bucket) {
      const bool is_on_one_rank = plan_.buckets()[bucket].is_sharded() || !weight_gather_;
      if (norm_ranges_[bucket] >= 0 && is_on_one_rank) sum_tiles(bucket);
    });
  }
  if (weight_gather_) exchange_tile_sums();
  backend_.copy_to_device(&report.sums, sums_, sizeof(StepSums), *stream_);
}

void Replica::sum_tiles(std::size_t bucket) {
  graph::observed(device_trace_.get(), trace::Kind::update, kSquaresSpan, [&] {
    clip_norm_->sum_tiles({.gradients = gradient_arena(),
                           .tile_sums = tile_sums_,
                           .range = static_cast<std::size_t>(norm_ranges_[bucket])},
                          *stream_);
  });
}

/// Every rank has summed the tiles of its shards, and has zeros for the others, so an all-reduce exchanges them.
/// Afterwards, each rank sums the tiles of buckets that are not sharded.
void Replica::exchange_tile_sums() {
  tiles_ready_->record(*stream_);
  communicator_.all_reduce_async(
      {.data = tile_sums_, .n_elements = plan_.tile_sums_bytes() / sizeof(double), .dtype = DType::fp64}, *tiles_ready_,
      *tiles_done_, kNormLabel);
  reducer_->wait_for(*tiles_done_, *stream_, current_);
  for (std::size_t bucket = 0; bucket < norm_ranges_.size(); ++bucket)
    if (norm_ranges_[bucket] >= 0 && !plan_.buckets()[bucket].is_sharded()) sum_tiles(bucket);
}

void Replica::update() {
  weights_are_gathered_ = false;
  if (running_.capturing) {
    apply_update();
    end_capture();
  }
  report();
}

void Replica::apply_update() {
  const trace::Span update_span(trace::Kind::update, "update");
  const OpMemory memory{workspace_->data(), nullptr};
  const float* gradients = gradient_arena();
  StepScalars* scalars = &state_->scalars;
  const auto part = [&](const std::string& name, const auto& work) {
    graph::observed(device_trace_.get(), trace::Kind::update, name, work);
  };
  // The norm is computed in every step: it lets all ranks make the same decision whether the step is applied, without
  // the host.
  part(kNormSpan, [&] {
    StepReport& report = state_->report;  // addresses on the device
    if (loss_scale_) backend_.copy_to_device(&report.loss_scale, loss_scale_, sizeof(LossScale), *stream_);
    clip_norm_->apply({.tile_sums = tile_sums_,
                       .sums = &sums_->loss,
                       .scalars = scalars,
                       .loss_scale = loss_scale_,
                       .norm = &report.gradient_norm},
                      *stream_);
    if (loss_scale_) backend_.copy_to_device(&report.next_loss_scale, loss_scale_, sizeof(LossScale), *stream_);
  });
  const graph::ParameterArena::Update parameter_arena = parameter_arena_.update();
  part(kOptimizerSpan, [&] {
    optimizer_->apply({.parameters = parameter_arena.masters,
                       .weights = parameter_arena.compute_weights,
                       .gradients = gradients,
                       .state = optimizer_state(),
                       .scalars = scalars},
                      memory, *stream_);
  });
  if (parameters().n_trained_statistics() > 0) {
    part(kStatisticsSpan, [&] {
      const std::size_t statistics = parameters().n_trainable();
      moving_average_->apply({.running = parameter_arena.masters + (statistics - parameter_arena_.first_master()),
                              .batch = gradients + statistics,
                              .scalars = scalars},
                             memory, *stream_);
    });
  }
  if (averages_) part(kAveragesSpan, [&] { averages_->update(parameter_arena.masters, scalars, *stream_); });
}

/// Starts copying the result of the step to the host.
void Replica::report() {
  Slot& slot = slots_[static_cast<std::size_t>(current_)];
  backend_.copy_to_device(&state_->report.is_applied, &state_->scalars.is_applied, sizeof(std::uint32_t), *stream_);
  backend_.copy_to_host(&slot.host->report, &state_->report, sizeof(StepReport), *stream_);
  slot.done->record(*stream_);
}

StepResult Replica::result(int steps_ago) {
  const int slot_number = steps_ago == 0 ? current_ : 1 - current_;
  const Slot& slot = slots_[static_cast<std::size_t>(slot_number)];
  slot.done->synchronize();
  communicator_.check();
  if (device_trace_ && steps_ago == 0) device_trace_->flush();
  const StepReport& report = slot.host->report;
  return {.sums = report.sums.loss,
          .local = report.local,
          .flags = report.sums.flags,
          .gradient_norm = report.sums.loss.weight == 0 && report.sums.loss.loss == 0 ? 0 : report.gradient_norm,
          .is_applied = report.is_applied,
          .loss_scale = report.loss_scale,
          .next_loss_scale = report.next_loss_scale,
          .exposed_communication_seconds = reducer_->exposed_seconds(slot_number)};
}

LossSums Replica::evaluate(const data::Batch& batch) {
  PlannedGraph* planned = plan_.evaluation();
  require(planned != nullptr, ErrorCode::internal, "the step was planned without evaluation");
  if (batch.n_samples == 0) return {};
  prepare(*planned, batch);
  planned->graph->forward(*stream_);
  LossSums sums;
  backend_.copy_to_host(&sums, &sums_->loss, sizeof(LossSums), *stream_);
  stream_->synchronize();
  if (device_trace_) device_trace_->flush();
  return sums;
}

void Replica::prepare_samples() {
  gather_weights();
  parameter_arena_.refresh(*stream_);
  stream_->synchronize();  // because the sampler has a stream of its own
  communicator_.check();
}

StepSums Replica::sum_over_ranks(const StepSums& mine) {
  backend_.copy_to_device(sums_, &mine, sizeof(StepSums), *stream_);
  sums_ready_->record(*stream_);
  communicator_.all_reduce_async({.data = sums_, .n_elements = StepSums::kElements, .dtype = DType::fp64}, *sums_ready_,
                                 *sums_done_, kEvaluationLabel);
  stream_->wait(*sums_done_);
  StepSums sums;
  backend_.copy_to_host(&sums, sums_, sizeof(StepSums), *stream_);
  stream_->synchronize();
  communicator_.check();
  return sums;
}

LossScale Replica::loss_scale() const {
  LossScale loss_scale;
  if (!loss_scale_) return loss_scale;
  backend_.copy_to_host(&loss_scale, loss_scale_, sizeof(loss_scale), *stream_);
  stream_->synchronize();
  return loss_scale;
}

void Replica::set_loss_scale(const LossScale& loss_scale) {
  if (!loss_scale_) return;
  backend_.copy_to_device(loss_scale_, &loss_scale, sizeof(loss_scale), *stream_);
  stream_->synchronize();
}

void Replica::gather_weights() {
  store_written();
  if (!weight_gather_ || weights_are_gathered_) return;
  parameter_arena_.refresh(*stream_);
  weight_gather_->start(*stream_);
  weight_gather_->wait_for_all(*stream_);
  weights_are_gathered_ = true;
}

std::uint64_t Replica::hash() {
  gather_weights();
  const void* const data = plan_.shards_masters() ? parameter_arena_.compute_weights() : parameter_arena_.masters();
  hash_->apply({.data = data, .hash = &state_->hash}, {workspace_->data(), nullptr}, *stream_);
  std::uint64_t hash = 0;
  backend_.copy_to_host(&hash, &state_->hash, sizeof(hash), *stream_);
  stream_->synchronize();
  communicator_.check();
  return hash;
}

}  // namespace lockstep::train
