#include "train/replica.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

#include "lockstep/error.h"
#include "lockstep/log.h"
#include "lockstep/trace.h"

namespace lockstep::train {

namespace {

const std::string kLossLabel = "loss", kEvaluationLabel = "evaluation";
const std::string kNormSpan = "gradient norm", kOptimizerSpan = "optimizer", kStatisticsSpan = "running statistics";

}  // namespace

Replica::Replica(StepPlan& plan, Backend& backend, Communicator& communicator)
    : plan_(plan), backend_(backend), communicator_(communicator), stream_(backend.make_stream()) {
  const graph::ParameterTable& table = plan.parameters();
  const MemoryReport memory = plan.memory();
  parameters_ = backend.allocate(memory.parameters, "parameters");
  gradients_ = communicator.allocate(memory.gradients + plan.exchange_bytes(), "gradients");
  optimizer_memory_ = backend.allocate(memory.optimizer, "optimizer state");
  activations_ = backend.allocate(memory.activations, "activations");
  optimizer_ = backend.optimizer(plan.optimizer());
  clip_norm_ = backend.clip_norm({.segments = plan.optimizer().segments,
                                  .max_norm = static_cast<float>(plan.config().train.clip_norm),
                                  .loss_scaling = plan.loss_scaling().value_or(LossScaling{})});
  const std::size_t n_statistics = table.n_gradients() - table.n_trainable();
  moving_average_ = backend.moving_average(
      {.n_elements = n_statistics, .momentum = static_cast<float>(plan.config().batch_norm.momentum)});
  hash_ = backend.hash({.size_bytes = memory.parameters});
  workspace_ =
      backend.allocate(std::max({memory.workspace, optimizer_->needs().forward_workspace_bytes,
                                 clip_norm_->needs().forward_workspace_bytes, hash_->needs().forward_workspace_bytes}),
                       "workspace");

  state_ = static_cast<StepState*>(optimizer_memory_->data());
  if (plan.loss_scaling()) loss_scale_ = &state_->loss_scale;
  set_loss_scale({.scale = static_cast<float>(plan.config().loss_scale.initial)});
  std::byte* exchange = static_cast<std::byte*>(gradients_->data()) + memory.gradients;
  for (PlannedGraph* planned : plan.all()) {
    planned->graph->bind({.parameters = parameter_arena(),
                          .exchange = exchange,
                          .activations = static_cast<std::byte*>(activations_->data()),
                          .workspace = workspace_->data(),
                          .scalars = &state_->scalars,
                          .loss_scale = loss_scale_,
                          .communicator = &communicator});
  }
  // Every graph has its sums at the same place: the trainer reads one.
  sums_ = reinterpret_cast<StepSums*>(exchange + plan.largest().sums_offset);
  accumulator_ = std::make_unique<GradientAccumulator>(plan, backend, gradient_arena(), &sums_->loss);
  reducer_ = std::make_unique<comm::GradientReducer>(communicator, backend, gradient_arena(), plan.buckets());
  sums_ready_ = backend.make_event();
  sums_done_ = communicator.make_event();
  uploader_ = std::make_unique<Uploader>(backend, plan.upload_samples(), plan.image_bytes());
  host_memory_ = backend.allocate_host(slots_.size() * sizeof(HostStep), "what steps are given and tell");
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

void Replica::begin_step(const StepScalars& scalars, const StepFlags& flags) {
  current_ = 1 - current_;
  Slot& slot = slots_[static_cast<std::size_t>(current_)];
  slot.done->synchronize();  // the step before the last has long been read
  if (device_trace_) device_trace_->begin_step(current_);
  slot.host->scalars = scalars;
  slot.host->flags = flags;
  backend_.copy_to_device(&state_->scalars, &slot.host->scalars, sizeof(StepScalars), *stream_);
  backend_.copy_to_device(&sums_->flags, &slot.host->flags, sizeof(StepFlags), *stream_);
}

void Replica::upload(const PlannedGraph& planned, const data::Batch& batch) {
  const graph::Graph& graph = *planned.graph;
  uploader_->upload(batch, graph.options().batch,
                    {.images = graph.tensor(planned.buffers.images),
                     .labels = graph.tensor(planned.buffers.labels),
                     .sample_ids = graph.tensor(planned.buffers.sample_ids)},
                    *stream_);
}

CapturedGraph& Replica::captured_graph(const MicroBatchKey& key) {
  std::unique_ptr<CapturedGraph>& graph = captured_graphs_[key];
  if (!graph) {
    const bool has_sums = key.is_last || plan_.config().batch_norm.synchronize;
    if (communicator_.is_capturable() || !has_sums)
      graph = backend_.make_captured_graph();
    else
      graph = std::make_unique<EagerGraph>();
  }
  return *graph;
}

void Replica::forward(PlannedGraph& planned, int micro_batch) {
  const trace::Span span(trace::Kind::forward, "forward");
  planned.graph->forward(*stream_, accumulator_->target(micro_batch));
  accumulator_->add_loss(micro_batch, *stream_);
}

void Replica::run_micro_batch(const data::Batch& batch, int micro_batch, std::int64_t global) {
  PlannedGraph& planned = plan_.training(batch.n_samples, global);
  upload(planned, batch);
  CapturedGraph& repeated =
      captured_graph({.n_samples = batch.n_samples, .global = global, .micro_batch = micro_batch});
  if (!repeated.begin(*stream_)) return;
  forward(planned, micro_batch);
  {
    const trace::Span span(trace::Kind::backward, "backward");
    planned.graph->backward(*stream_, accumulator_->target(micro_batch), nullptr);
    accumulator_->add_gradients(micro_batch, *stream_);
  }
  repeated.end(*stream_);
}

void Replica::run_last_micro_batch(PlannedGraph& planned, int micro_batch) {
  forward(planned, micro_batch);
  {
    const trace::Span span(trace::Kind::backward, "backward");
    int tensor = 0;  // parameters finish in the arena's order
    const auto done = [&] {
      reducer_->tensor_done(tensor++, *stream_, [this](const comm::Bucket& b) { accumulator_->finish(b, *stream_); });
    };
    planned.graph->backward(*stream_, accumulator_->target(micro_batch), [&](graph::ParameterId) { done(); });
    for (std::size_t i = 0; i < parameters().statistics().size(); ++i) done();
  }
  reduce();
}

void Replica::finish_step(const data::Batch& batch, int micro_batch, std::int64_t global) {
  PlannedGraph& planned = plan_.training(batch.n_samples, global);
  upload(planned, batch);
  CapturedGraph& repeated = captured_graph(
      {.n_samples = batch.n_samples, .global = global, .micro_batch = micro_batch, .is_last = true, .slot = current_});
  if (repeated.begin(*stream_)) {
    run_last_micro_batch(planned, micro_batch);
    update();
    repeated.end(*stream_);
  }
  report();
}

void Replica::finish_without_update(const data::Batch& batch, int micro_batch, std::int64_t global) {
  PlannedGraph& planned = plan_.training(batch.n_samples, global);
  upload(planned, batch);
  run_last_micro_batch(planned, micro_batch);
  report();
}

void Replica::reduce() {
  StepReport& report = state_->report;  // addresses on the device
  backend_.copy_to_device(&report.local, &sums_->loss, sizeof(LossSums), *stream_);
  sums_ready_->record(*stream_);
  communicator_.all_reduce_async({.data = sums_, .n_elements = StepSums::kElements, .dtype = DType::fp64}, *sums_ready_,
                                 *sums_done_, kLossLabel);
  {
    const trace::Span span(trace::Kind::wait, "communication");
    reducer_->finish(*stream_, current_, sums_done_.get());
  }
  backend_.copy_to_device(&report.sums, sums_, sizeof(StepSums), *stream_);
}

void Replica::update() {
  const trace::Span update_span(trace::Kind::update, "update");
  const OpMemory memory{workspace_->data(), nullptr};
  const float* gradients = gradient_arena();
  StepScalars* scalars = &state_->scalars;
  const auto part = [&](const std::string& name, const auto& work) {
    graph::observed(device_trace_.get(), trace::Kind::update, name, work);
  };
  // The norm is taken in every step: by it all ranks decide alike, and without the host, whether the step is applied.
  part(kNormSpan, [&] {
    StepReport& report = state_->report;  // addresses on the device
    if (loss_scale_) backend_.copy_to_device(&report.loss_scale, loss_scale_, sizeof(LossScale), *stream_);
    clip_norm_->apply({.gradients = gradients,
                       .sums = &sums_->loss,
                       .scalars = scalars,
                       .loss_scale = loss_scale_,
                       .norm = &report.gradient_norm},
                      memory, *stream_);
    if (loss_scale_) backend_.copy_to_device(&report.next_loss_scale, loss_scale_, sizeof(LossScale), *stream_);
  });
  part(kOptimizerSpan, [&] {
    optimizer_->apply(
        {.parameters = parameter_arena(), .gradients = gradients, .state = optimizer_state(), .scalars = scalars},
        memory, *stream_);
  });
  part(kStatisticsSpan, [&] {
    const std::size_t statistics = parameters().n_trainable();
    moving_average_->apply(
        {.running = parameter_arena() + statistics, .batch = gradients + statistics, .scalars = scalars}, memory,
        *stream_);
  });
}

/// Sends what the step told on its way to the host.
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
  if (device_trace_ && steps_ago == 0) device_trace_->flush();
  const StepReport& report = slot.host->report;
  return {.sums = report.sums.loss,
          .local = report.local,
          .flags = report.sums.flags,
          .gradient_norm = report.gradient_norm,
          .is_applied = report.is_applied,
          .loss_scale = report.loss_scale,
          .next_loss_scale = report.next_loss_scale,
          .exposed_communication_seconds = reducer_->exposed_seconds(slot_number)};
}

LossSums Replica::evaluate(const data::Batch& batch) {
  PlannedGraph* planned = plan_.evaluation();
  require(planned != nullptr, ErrorCode::internal, "the step was planned without evaluation");
  if (batch.n_samples == 0) return {};
  upload(*planned, batch);
  planned->graph->forward(*stream_);
  LossSums sums;
  backend_.copy_to_host(&sums, &sums_->loss, sizeof(LossSums), *stream_);
  stream_->synchronize();
  if (device_trace_) device_trace_->flush();
  return sums;
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

std::uint64_t Replica::hash() {
  hash_->apply({.data = parameters_->data(), .hash = &state_->hash}, {workspace_->data(), nullptr}, *stream_);
  std::uint64_t hash = 0;
  backend_.copy_to_host(&hash, &state_->hash, sizeof(hash), *stream_);
  stream_->synchronize();
  return hash;
}

std::vector<StateTensor> Replica::tensors() const { return state_tensors(parameters(), plan_.optimizer()); }

float* Replica::place_of(const StateTensor& tensor) const {
  return (tensor.arena == StateTensor::Arena::parameters ? parameter_arena() : optimizer_state()) + tensor.begin;
}

/// `parameter` null: canonical.
void Replica::write(float* at, const graph::Parameter* parameter, std::span<const float> canonical) {
  if (!parameter) {
    backend_.copy_to_device(at, canonical.data(), canonical.size_bytes(), *stream_);
  } else {
    const std::vector<float> packed = graph::pack(*parameter, canonical);
    backend_.copy_to_device(at, packed.data(), packed.size() * sizeof(float), *stream_);
  }
  stream_->synchronize();
}

void Replica::write(const StateTensor& tensor, std::span<const float> canonical) {
  float* const at = place_of(tensor);
  if (!tensor.parameter || tensor.parameter->parts.size() == 1) return write(at, tensor.parameter, canonical);
  std::vector<float> packed(tensor.n_elements);  // with the other parts
  backend_.copy_to_host(packed.data(), at, packed.size() * sizeof(float), *stream_);
  stream_->synchronize();
  graph::pack_part(*tensor.parameter, *tensor.part, canonical, packed);
  backend_.copy_to_device(at, packed.data(), packed.size() * sizeof(float), *stream_);
  stream_->synchronize();
}

// Drawing 11 million normals takes a rank longer than all else before step 0, so ranks divide the tensors: each draws
// its own into the gradients' memory, and the sum over ranks, where the others have zeros, is exact. Frozen parameters
// have no gradients, so every rank draws all of those.
void Replica::initialize(std::uint32_t seed) {
  const graph::ParameterTable& table = parameters();
  const std::int64_t n_canonical = table.n_canonical();
  std::vector<const graph::Parameter*> mine, frozen;
  std::int64_t begin = 0;
  for (const graph::Parameter& p : table.parameters()) {
    if (!p.trainable) frozen.push_back(&p);
    if (!p.trainable) continue;
    const std::int64_t middle = begin + p.shape.n_elements() / 2;
    if (middle * communicator_.size() / n_canonical == communicator_.rank()) mine.push_back(&p);
    begin += p.shape.n_elements();
  }
  backend_.fill_zero(gradient_arena(), table.n_gradients() * sizeof(float), *stream_);
  stream_->synchronize();
#pragma omp parallel for schedule(dynamic, 1)
  for (const graph::Parameter* p : mine) write(gradient_arena() + p->begin, p, table.initial_values(*p, seed));
#pragma omp parallel for schedule(dynamic, 1)
  for (const graph::Parameter* p : frozen) write(parameter_arena() + p->begin, p, table.initial_values(*p, seed));
  const std::size_t n_tensors = table.order().size() + table.statistics().size();
  for (std::size_t i = 0; i < n_tensors; ++i) reducer_->tensor_done(static_cast<int>(i), *stream_);
  reducer_->finish(*stream_);
  backend_.copy_to_device(parameter_arena(), gradient_arena(), table.n_trainable() * sizeof(float), *stream_);

  for (const StateTensor& tensor : tensors()) {
    if (!tensor.path.starts_with("/statistics/")) continue;
    const float value = tensor.path.ends_with(".running_var") ? 1.0f : 0.0f;
    write(tensor, std::vector<float>(tensor.n_elements, value));
  }
}

std::vector<checkpoint::TensorSource> Replica::sources() const {
  std::vector<checkpoint::TensorSource> out;
  for (const StateTensor& tensor : tensors()) {
    out.push_back(source_of(tensor));
    out.back().read = [this, tensor](std::span<float> stored) {
      backend_.copy_to_host(stored.data(), place_of(tensor), stored.size_bytes(), *stream_);
      stream_->synchronize();
    };
  }
  return out;
}

std::vector<checkpoint::TensorTarget> Replica::targets() {
  std::vector<checkpoint::TensorTarget> out;
  for (const StateTensor& tensor : tensors())
    out.push_back({.path = tensor.path, .shape = tensor.shape, .write = [this, tensor](std::span<const float> values) {
                     write(tensor, values);
                   }});
  return out;
}

std::vector<checkpoint::NamedTensor> Replica::named_tensors(std::int64_t step) const {
  std::vector<checkpoint::NamedTensor> out;
  const auto group_of = [](const std::string& path) { return path.substr(0, path.find('/', 1) + 1); };
  for (const checkpoint::TensorSource& source : sources()) {
    const std::string group = group_of(source.path);
    if (group == "/optimizer/") continue;
    out.push_back({.name = source.path.substr(group.size()),
                   .shape = source.shape,
                   .values = checkpoint::read_canonical(source)});
  }
  for (const graph::RunningStatistic& s : parameters().statistics())
    out.push_back({.name = s.name + ".num_batches_tracked", .shape = {}, .values = {static_cast<float>(step)}});
  return out;
}

std::vector<float> Replica::unpacked(const std::string& name, float* arena) const {
  for (const graph::Parameter& p : parameters().parameters()) {
    if (p.name != name) continue;
    std::vector<float> stored(p.n_elements), values(static_cast<std::size_t>(p.shape.n_elements()));
    backend_.copy_to_host(stored.data(), arena + p.begin, stored.size() * sizeof(float), *stream_);
    stream_->synchronize();
    graph::unpack(p, stored, values);
    return values;
  }
  fail(ErrorCode::internal, "there is no parameter {}", name);
}

std::vector<float> Replica::gradient(const std::string& name) const { return unpacked(name, gradient_arena()); }
std::vector<float> Replica::parameter(const std::string& name) const { return unpacked(name, parameter_arena()); }

std::vector<std::string> Replica::load_named(const std::vector<checkpoint::NamedTensor>& tensors) {
  std::vector<std::string> kept;
  for (checkpoint::TensorTarget& target : targets()) {
    if (target.path.starts_with("/optimizer/")) continue;
    const std::string name = target.path.substr(target.path.find('/', 1) + 1);
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
    require(found != tensors.end(), ErrorCode::checkpoint_mismatch,
            "model.initialize_from: the file has no tensor {} of shape {}", name, target.shape.text());
    if (found->shape == target.shape) {
      target.write(found->values);
    } else {
      require(name.starts_with("fc."), ErrorCode::checkpoint_mismatch,
              "model.initialize_from: {} is {} in the file and {} in the model", name, found->shape.text(),
              target.shape.text());
      kept.push_back(fmt::format("{} is {} in the file, {} here", name, found->shape.text(), target.shape.text()));
    }
  }
  return kept;
}

}  // namespace lockstep::train
