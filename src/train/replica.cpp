#include "train/replica.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <new>

#include "lockstep/error.h"
#include "lockstep/log.h"
#include "lockstep/trace.h"
#include "tasks/language_modelling/text_sampler.h"

namespace lockstep::train {

namespace {

constexpr int kNoSlot = -1;
constexpr std::size_t kLossElements = sizeof(LossSums) / sizeof(double);

}  // namespace

Replica::Replica(StepPlan& plan, Backend& backend, Communicator& communicator)
    : plan_(plan),
      backend_(backend),
      communicator_(communicator),
      stream_(backend.make_stream()),
      copy_stream_(backend.make_stream()),
      is_complete_(backend.make_event()),
      is_copied_(backend.make_event()),
      parameter_arena_(plan.parameters(), plan.compute_dtype(), backend, plan.n_masters(), plan.shard_of_masters(),
                       plan.weights().stored(),
                       plan.shard().is_whole() || plan.shards_weights() ? nullptr : &communicator) {
  const graph::ParameterTable& table = plan.parameters();
  const MemoryReport memory = plan.memory();
  const std::size_t gradient_bytes = graph::aligned(plan.gradient_layout().size_bytes());
  gradients_ = communicator.allocate(gradient_bytes + plan.exchange_bytes(), "gradients");
  if (memory.low_precision_gradients > 0) {
    low_precision_gradients_ = backend.allocate(memory.low_precision_gradients, "gradients in 16 bits");
    backend.fill_zero(low_precision_gradients_->data(), memory.low_precision_gradients,
                      *stream_);  // clears the padding between tensors
    widen_ = backend.make(CastDescription{.from = plan.compute_dtype(), .to = DType::fp32});
  }
  if (plan.shards_weights()) {
    gathered_ = communicator.allocate(memory.gathered_weights, "gathered weights");
    for (std::size_t i = 0; i < table.parameters().size(); ++i) {
      const std::optional<std::size_t> place = plan.weights().place_of(static_cast<graph::ParameterId>(i));
      gathered_parameters_.push_back(place ? gathered_weights() + *place : nullptr);
    }
    hash_of_unit_ = backend.make(HashDescription{.size_bytes = memory.gathered_weights});
  }
  optimizer_memory_ = backend.allocate(memory.optimizer, "optimizer state");
  activations_ = backend.allocate(memory.activations, "activations");
  if (!plan.offloads())
    for (const OptimizerDescription& d : plan.optimizers()) updates_.push_back({d, backend.make(d)});
  clip_norm_ = backend.make(ClipNormDescription{.n_elements = table.n_trainable(),
                                                .max_norm = static_cast<float>(plan.config().train.clip_norm),
                                                .loss_scaling = plan.loss_scaling().value_or(LossScaling{})});
  const std::size_t n_statistics = table.n_gradients() - table.n_trainable();
  moving_average_ =
      backend.make(MovingAverageDescription{.n_elements = n_statistics, .momentum = plan.task().statistics_momentum()});
  if (plan.averages() == Averages::kept) averages_ = std::make_unique<WeightAverages>(plan, backend);
  hash_ = backend.make(HashDescription{.size_bytes = hashed().size()});
  std::size_t workspace_bytes = std::max(memory.workspace, hash_->memory_requirements().forward_workspace_bytes);
  if (hash_of_unit_)
    workspace_bytes = std::max(workspace_bytes, hash_of_unit_->memory_requirements().forward_workspace_bytes);
  for (const ParameterUpdate& update : updates_)
    workspace_bytes = std::max(workspace_bytes, update.op->memory_requirements().forward_workspace_bytes);
  workspace_ = backend.allocate(workspace_bytes, "workspace");
  if (plan.uses_second_stream()) {
    second_stream_ = backend.make_stream();
    second_workspace_ = backend.allocate(memory.second_workspace, "workspace of weight gradients");
  }

  state_ = static_cast<StepState*>(optimizer_memory_->data());
  if (plan.loss_scaling()) loss_scale_ = &state_->loss_scale;
  set_loss_scale({.scale = static_cast<float>(plan.config().loss_scale.initial)});
  std::byte* exchange = static_cast<std::byte*>(gradients_->data()) + gradient_bytes;
  graph::Bindings bindings = parameter_arena_.bindings();
  bindings.gathered = gathered_ ? gathered_parameters_.data() : nullptr;
  bindings.low_precision_gradients = low_precision_gradients_ ? low_precision_gradients_->data() : nullptr;
  bindings.exchange = exchange;
  bindings.activations = static_cast<std::byte*>(activations_->data());
  bindings.workspace = workspace_->data();
  bindings.second_stream = second_stream_.get();
  bindings.second_workspace = second_workspace_ ? second_workspace_->data() : nullptr;
  bindings.scalars = &state_->scalars;
  bindings.loss_scale = loss_scale_;
  bindings.communicator = &communicator;
  for (PlannedGraph* planned : plan.all()) planned->graph->bind(bindings);
  if (plan.sampler() != nullptr) plan.sampler()->bind(bindings);
  // The sums of all graphs are at the same position.
  sums_ = reinterpret_cast<StepSums*>(exchange + plan.largest().sums_offset);
  tile_sums_ = reinterpret_cast<double*>(exchange + plan.tile_sums_offset());
  accumulator_ = std::make_unique<GradientAccumulator>(plan, backend, *stream_, gradients(), &sums_->loss,
                                                       reinterpret_cast<LossSums*>(sums_ + 1), &state_->report.local);
  if (plan.offloads()) offload_ = std::make_unique<OffloadedOptimizer>(plan, backend, parameter_arena_);
  if (!plan.shard().is_whole() && !plan.shards_weights()) weight_gather_ = gather_list(plan, shared_weights());
  if (PlannedGraph* planned = plan.evaluation()) {
    evaluation_.list = graph::StepList(planned->graph.get());
    UnitGathers gathers(evaluation_.list, plan, *planned->graph, this);
    for (std::size_t i = 0; i < planned->graph->order().n_forward(); ++i) {
      gathers.add_before(i);
      evaluation_.list.add_entry(i);
    }
    evaluation_.captured = make_captured(evaluation_.list);
    sum_evaluation_ = backend.make(OrderedSumDescription{.dtype = DType::fp64});
    evaluation_.list.add_task(
        {.kind = trace::Kind::evaluation, .name = "loss sums", .work = [this](Stream& s) { add_evaluated(s); }});
  }
  evaluation_sums_.add_wait(evaluation_sums_.add_start(
      {.exchange = {.slice = {.data = &sums_->loss, .n_elements = kLossElements, .dtype = DType::fp64}},
       .label = "evaluation"}));
  for (graph::StepList* list : {&weight_gather_, &evaluation_.list, &evaluation_sums_})
    list->bind(backend, &communicator);
  rounds_ = plan.rounds();
  uploader_ = std::make_unique<Uploader>(backend, plan.upload_bytes());
  for (const PlannedGraph* planned : plan.all())
    upload_targets_.resize(std::max(upload_targets_.size(), planned->fields.size()));
  host_memory_ = backend.allocate_host(slots_.size() * sizeof(HostStep), "scalars and reports of steps");
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].host = new (static_cast<HostStep*>(host_memory_->data()) + i) HostStep;
    slots_[i].done = backend.make_event();
  }
  backend.freeze();
  device_trace_ = graph::DeviceTrace::make(backend, *stream_);
}

Replica::~Replica() { backend_.unfreeze(); }

void* Replica::shared_weights() {
  const graph::ParameterArena::Update arena = parameter_arena_.update();
  return arena.compute_weights ? arena.compute_weights : arena.masters;
}

std::byte* Replica::optimizer_state() const {
  return static_cast<std::byte*>(optimizer_memory_->data()) + graph::aligned(sizeof(StepState));
}

void Replica::begin_step(const BatchShape& shape, const StepScalars& scalars, const StepFlags& flags) {
  communicator_.check();
  running_.shape = shape;
  running_.micro_batch = -1;
  current_ = 1 - current_;
  Slot& slot = slots_[static_cast<std::size_t>(current_)];
  if (gradients_hold_others_) {
    wait_for_copy(*stream_);  // of what they hold
    // The padding between gradients is part of their norm.
    backend_.fill_zero(gradients_->data(), plan_.gradient_layout().size_bytes(), *stream_);
    gradients_hold_others_ = false;
  }
  slot.done->synchronize();  // does not wait: the result of the previous step in this slot was read long ago
  if (device_trace_) device_trace_->begin_step(current_);
  slot.host->scalars = scalars;
  slot.host->flags = flags;
  backend_.copy(&state_->scalars, &slot.host->scalars, sizeof(StepScalars), *stream_);
  backend_.copy(&sums_->flags, &slot.host->flags, sizeof(StepFlags), *stream_);
}

void Replica::refresh(Stream& stream) {
  if (offload_) offload_->refresh(stream);
  parameter_arena_.refresh(stream);
}

void Replica::prepare(const PlannedGraph& planned, const data::Batch& batch) {
  refresh(*stream_);
  const graph::Graph& graph = *planned.graph;
  for (std::size_t i = 0; i < planned.fields.size(); ++i) upload_targets_[i] = graph.tensor(planned.fields[i]);
  uploader_->upload(batch, planned.batch, graph.options().batch, upload_targets_, *stream_);
}

Replica::MicroBatch& Replica::micro_batch(PlannedGraph& planned) {
  // The last micro-batch measures time by the events of the slot. Which one is the last depends on the rank, so the
  // slot counts wherever ranks exchange something.
  const bool gathers = !plan_.shard().is_whole() && running_.micro_batch == 0;
  const bool has_exchanges = running_.is_last() || planned.has_exchanges() || gathers || plan_.shards_gradients();
  const MicroBatchKey key{.global_batch = running_.shape.global_batch,
                          .number = running_.micro_batch,
                          .slot = has_exchanges ? current_ : kNoSlot};
  if (const auto found = micro_batches_.find(key); found != micro_batches_.end()) return found->second;
  graph::StepList list = list_of(plan_, planned, {running_.micro_batch, running_.is_last()}, this);
  list.bind(backend_, &communicator_);
  std::unique_ptr<CapturedGraph> captured = make_captured(list);
  return micro_batches_.emplace(key, MicroBatch{std::move(list), std::move(captured)}).first->second;
}

std::unique_ptr<CapturedGraph> Replica::make_captured(const graph::StepList& list) const {
  if (communicator_.is_capturable() || list.exchanges().empty()) return backend_.make_captured_graph();
  return std::make_unique<EagerGraph>();
}

void Replica::run(const data::Batch& batch) {
  const int number = ++running_.micro_batch;
  PlannedGraph& planned = plan_.training(batch.n_samples, running_.shape.global_micro_batch_size(number));
  prepare(planned, batch);
  MicroBatch& running = micro_batch(planned);
  queue(running, accumulator_->target(number));
  if (!running_.is_last()) return;
  weights_are_gathered_ = false;
  if (offload_) offload_->expect_update();
  slots_[static_cast<std::size_t>(current_)].list = &running.list;
  report();
}

void Replica::queue(MicroBatch& micro_batch, const graph::ParameterGradients& gradients) {
  micro_batch.captured->run(*stream_, [&] { micro_batch.list.queue(*stream_, gradients, device_trace_.get()); });
}

void Replica::queue_alone(graph::StepList& list) { list.queue(*stream_, {}, device_trace_.get()); }

void Replica::widen_gradients(int micro_batch, ElementRange range, Stream& stream) {
  const graph::ParameterGradients target = accumulator_->target(micro_batch);
  const auto* source = static_cast<const std::byte*>(low_precision_gradients_->data());
  widen_->apply({.source = source + range.begin * size_bytes(plan_.compute_dtype()),
                 .target = target.arena.at(range.begin).as<float>(),
                 .n_elements = range.n_elements,
                 .accumulate = target.mode == GradientMode::accumulate},
                {}, stream);
}

void Replica::clear_gradients(ElementRange range, Stream& stream) {
  const TypedPointer at = gradients().at(range.begin);
  backend_.fill_zero(at.data, range.n_elements * size_bytes(at.dtype), stream);
}

void Replica::copy_gradients(std::size_t slot, ElementRange range, Stream& stream) {
  const TypedPointer from = gradients().at(slot);
  backend_.copy(gradients().at(range.begin).data, from.as<std::byte>() + (range.begin - slot) * size_bytes(from.dtype),
                range.n_elements * size_bytes(from.dtype), stream);
}

void Replica::report_local(Stream& stream) {
  backend_.copy(&state_->report.local, &sums_->loss, sizeof(LossSums), stream);  // on the device
}

void Replica::report_sums(Stream& stream) { backend_.copy(&state_->report.sums, sums_, sizeof(StepSums), stream); }

void Replica::clear_tiles(Stream& stream) { backend_.fill_zero(tile_sums_, plan_.tile_sums_bytes(), stream); }

void Replica::sum_tiles(std::size_t bucket, Stream& stream) {
  const ElementRange range = plan_.range_of_norm(bucket);
  const TypedPointer first = accumulator_->sum_at(range.begin);
  clip_norm_->sum_tiles({.gradients = {first.data, first.dtype}, .tile_sums = tile_sums_, .range = range}, stream);
}

void Replica::apply_norm(Stream& stream) {
  StepReport& report = state_->report;  // addresses on the device
  if (loss_scale_) backend_.copy(&report.loss_scale, loss_scale_, sizeof(LossScale), stream);
  clip_norm_->apply({.tile_sums = tile_sums_,
                     .sums = &sums_->loss,
                     .scalars = &state_->scalars,
                     .loss_scale = loss_scale_,
                     .norm = &report.gradient_norm},
                    stream);
  if (loss_scale_) backend_.copy(&report.next_loss_scale, loss_scale_, sizeof(LossScale), stream);
}

void Replica::apply_optimizer(Stream& stream) {
  const graph::ParameterArena::Update arena = parameter_arena_.update();
  auto* const weights = static_cast<std::byte*>(arena.compute_weights);
  for (const ParameterUpdate& update : updates_) {
    const OptimizerDescription& d = update.description;
    float* parameters = d.has_masters ? arena.masters : nullptr;
    if (d.has_masters && !d.parameters_are_sharded) parameters += d.first - parameter_arena_.first_master();
    update.op->apply(
        {.parameters = parameters,
         .weights = weights && !d.weights_are_sharded ? weights + d.first * size_bytes(plan_.compute_dtype()) : weights,
         .gradients = accumulator_->gradients_of(d),
         .state = optimizer_state(),
         .scalars = &state_->scalars},
        {workspace_->data(), nullptr}, stream);
  }
}

void Replica::update_statistics(Stream& stream) {
  const std::size_t statistics = parameters().n_trainable();
  moving_average_->apply({.running = parameter_arena_.update().masters + (statistics - parameter_arena_.first_master()),
                          .batch = accumulator_->sum_at(statistics).as<float>(),
                          .scalars = &state_->scalars},
                         {workspace_->data(), nullptr}, stream);
}

void Replica::update_averages(Stream& stream) {
  averages_->update(parameter_arena_.update().masters, &state_->scalars, stream);
}

void Replica::report() {
  Slot& slot = slots_[static_cast<std::size_t>(current_)];
  backend_.copy(&state_->report.is_applied, &state_->scalars.is_applied, sizeof(std::uint32_t), *stream_);
  backend_.copy(&slot.host->report, &state_->report, sizeof(StepReport), *stream_);
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
          .exposed_communication_seconds = slot.list->exposed_seconds()};
}

void Replica::begin_evaluation() {
  require(plan_.evaluation() != nullptr, ErrorCode::internal, "the step was planned without evaluation");
  gather_weights();
  backend_.fill_zero(&state_->evaluation, sizeof(LossSums), *stream_);
}

void Replica::evaluate(const data::Batch& batch) {
  if (batch.n_samples == 0 && !plan_.shards_weights()) return;  // otherwise, it gathers weights for others
  prepare(*plan_.evaluation(), batch);
  queue(evaluation_, {});
  if (!device_trace_) return;
  stream_->synchronize();
  device_trace_->flush();
}

void Replica::add_evaluated(Stream& stream) {
  const std::array<const void*, 1> before{&state_->evaluation};
  sum_evaluation_->apply(
      {.value = &sums_->loss, .open = before, .target = &state_->evaluation, .n_elements = kLossElements}, {}, stream);
}

LossSums Replica::end_evaluation() {
  backend_.copy(&sums_->loss, &state_->evaluation, sizeof(LossSums), *stream_);
  queue_alone(evaluation_sums_);
  LossSums sums;
  backend_.copy(&sums, &sums_->loss, sizeof(LossSums), *stream_);
  stream_->synchronize();
  communicator_.check();
  return sums;
}

void Replica::prepare_samples() {
  gather_weights();
  refresh(*stream_);
  stream_->synchronize();  // because the sampler has a stream of its own
  communicator_.check();
}

LossScale Replica::loss_scale() const {
  LossScale loss_scale;
  if (!loss_scale_) return loss_scale;
  backend_.copy(&loss_scale, loss_scale_, sizeof(loss_scale), *stream_);
  stream_->synchronize();
  return loss_scale;
}

void Replica::set_loss_scale(const LossScale& loss_scale) {
  if (!loss_scale_) return;
  backend_.copy(loss_scale_, &loss_scale, sizeof(loss_scale), *stream_);
  stream_->synchronize();
}

void Replica::gather_weights() {
  if (offload_) offload_->finish(*stream_);
  if (plan_.shard().is_whole() || plan_.shards_weights() || weights_are_gathered_) return;
  refresh(*stream_);
  queue_alone(weight_gather_);
  weights_are_gathered_ = true;
}

const std::byte* Replica::stored_weights(bool is_nf4) const {
  if (is_nf4) return parameter_arena_.nf4_weights();
  const void* const weights = parameter_arena_.compute_weights();
  return static_cast<const std::byte*>(weights ? weights : parameter_arena_.masters());
}

void Replica::copy_rest_of(const WeightUnit& unit, Stream& stream) {
  backend_.copy(gathered_weights() + unit.offset + unit.rest_offset, stored_weights(false) + unit.rest_stored,
                unit.rest.n_elements * size_bytes(plan_.compute_dtype()), stream);
}

std::span<const std::byte> Replica::hashed() const {
  const std::span masters(reinterpret_cast<const std::byte*>(parameter_arena_.masters()),
                          plan_.n_masters() * sizeof(float));
  if (plan_.has_all_masters()) return masters;
  if (plan_.shards_weights()) return masters.subspan(plan_.shard_of_masters().whole_stored() * sizeof(float));
  return {static_cast<const std::byte*>(parameter_arena_.compute_weights()),
          plan_.weights().stored().n_elements * size_bytes(plan_.compute_dtype())};
}

std::uint64_t Replica::hash() {
  refresh(*stream_);
  gather_weights();
  std::uint64_t all = 0;
  const auto add = [&](Hash& op, const void* data) {
    op.apply({.data = data, .hash = &state_->hash}, {workspace_->data(), nullptr}, *stream_);
    std::uint64_t hash = 0;
    backend_.copy(&hash, &state_->hash, sizeof(hash), *stream_);
    stream_->synchronize();
    communicator_.check();
    all = std::rotl(all, 1) ^ hash;
  };
  add(*hash_, hashed().data());
  for (std::size_t i = 0; plan_.shards_weights() && i < plan_.weights().units().size(); ++i) {
    graph::StepList list = UnitGathers::list_of(plan_, i, this);
    list.bind(backend_, &communicator_);
    queue_alone(list);
    add(*hash_of_unit_, gathered_->data());
  }
  return all;
}

}  // namespace lockstep::train
