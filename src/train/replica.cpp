#include "train/replica.h"

#include <algorithm>
#include <cstring>

#include "lockstep/error.h"
#include "lockstep/trace.h"

namespace lockstep::train {

namespace {

const std::string kLossLabel = "loss", kEvaluationLabel = "evaluation";

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
  std::size_t n_statistics = table.n_total() - table.n_trainable();
  moving_average_ = backend.moving_average(
      {.n_elements = n_statistics, .momentum = static_cast<float>(plan.config().batch_norm.momentum)});
  hash_ = backend.hash({.size_bytes = memory.parameters});
  workspace_ =
      backend.allocate(std::max({memory.workspace, optimizer_->needs().forward_workspace_bytes,
                                 clip_norm_->needs().forward_workspace_bytes, hash_->needs().forward_workspace_bytes}),
                       "workspace");

  auto* state = static_cast<StepState*>(optimizer_memory_->data());
  scalars_ = &state->scalars;
  if (plan.loss_scaling()) loss_scale_ = &state->loss_scale;
  set_loss_scale({.scale = static_cast<float>(plan.config().loss_scale.initial)});
  norm_ = &state->norm;
  hash_result_ = &state->hash;
  std::byte* exchange = static_cast<std::byte*>(gradients_->data()) + memory.gradients;
  for (PlannedGraph* planned : plan.all()) {
    planned->graph->bind({.parameters = parameter_arena(),
                          .exchange = exchange,
                          .activations = static_cast<std::byte*>(activations_->data()),
                          .workspace = workspace_->data(),
                          .scalars = scalars_,
                          .loss_scale = loss_scale_,
                          .communicator = &communicator});
  }
  // Every graph has its sums at the same place: the trainer reads one.
  sums_ = reinterpret_cast<StepSums*>(exchange + plan.largest().sums_offset);
  piece_sums_ = std::make_unique<PieceSums>(plan, backend, gradient_arena(), &sums_->loss);
  reducer_ = std::make_unique<comm::GradientReducer>(communicator, backend, gradient_arena(), plan.buckets());
  sums_ready_ = backend.make_event();
  sums_done_ = communicator.make_event();
  backend.seal();
}

Replica::~Replica() { backend_.unseal(); }

float* Replica::optimizer_state() const {
  return reinterpret_cast<float*>(static_cast<std::byte*>(optimizer_memory_->data()) +
                                  graph::aligned(sizeof(StepState)));
}

void Replica::begin_step(const StepScalars& scalars, const StepFlags& flags) {
  current_ = 1 - current_;
  results_[static_cast<std::size_t>(current_)] = {};
  backend_.copy_to_device(scalars_, &scalars, sizeof(scalars), *stream_);
  backend_.copy_to_device(&sums_->flags, &flags, sizeof(flags), *stream_);
}

void Replica::upload(const PlannedGraph& planned, const data::Batch& batch) {
  const graph::Graph& graph = *planned.graph;
  const std::int64_t n = graph.options().batch;
  const auto copy = [&](graph::TensorId tensor, const auto* source, std::size_t per_sample) {
    backend_.copy_to_device(graph.tensor(tensor), source, static_cast<std::size_t>(n) * per_sample, *stream_);
  };
  require(static_cast<std::int64_t>(batch.labels.size()) >= n, ErrorCode::internal,
          "a batch of {} samples for a step of {}", batch.labels.size(), n);
  copy(planned.buffers.images, batch.images.data(), batch.images.size() / batch.labels.size());
  copy(planned.buffers.labels, batch.labels.data(), sizeof(std::int32_t));
  copy(planned.buffers.sample_ids, batch.sample_ids.data(), sizeof(std::uint32_t));
}

void Replica::run_piece(const data::Batch& batch, int piece, std::int64_t global, bool last) {
  PlannedGraph& planned = plan_.training(batch.n_samples, global);
  const graph::ParameterGradients target = piece_sums_->target(piece);
  {
    const trace::Span span(trace::Kind::forward, "forward");
    upload(planned, batch);
    planned.graph->forward(*stream_, target);
    piece_sums_->add_loss(piece, *stream_);
  }
  const trace::Span span(trace::Kind::backward, "backward");
  if (!last) {
    planned.graph->backward(*stream_, target, nullptr);
    piece_sums_->add_gradients(piece, *stream_);
    return;
  }
  int tensor = 0;  // parameters finish in the arena's order
  const auto done = [&] {
    reducer_->tensor_done(tensor++, *stream_, [this](const comm::Bucket& b) { piece_sums_->finish(b, *stream_); });
  };
  planned.graph->backward(*stream_, target, [&](graph::ParameterId) { done(); });
  for (std::size_t i = 0; i < parameters().statistics().size(); ++i) done();
}

void Replica::reduce() {
  StepResult& result = results_[static_cast<std::size_t>(current_)];
  backend_.copy_to_host(&result.local, &sums_->loss, sizeof(LossSums), *stream_);
  sums_ready_->record(*stream_);
  communicator_.all_reduce_async({.data = sums_, .n_elements = StepSums::kElements, .dtype = DType::fp64}, *sums_ready_,
                                 *sums_done_, kLossLabel);
  {
    const trace::Span span(trace::Kind::wait, "communication");
    result.exposed_communication_seconds = reducer_->finish(*stream_);
    stream_->wait(*sums_done_);
  }
  backend_.copy_to_host(&result.sums, &sums_->loss, sizeof(LossSums), *stream_);
  backend_.copy_to_host(&result.flags, &sums_->flags, sizeof(StepFlags), *stream_);
}

void Replica::update() {
  const trace::Span update_span(trace::Kind::update, "update");
  const OpMemory memory{workspace_->data(), nullptr};
  const float* gradients = gradient_arena();
  StepResult& result = results_[static_cast<std::size_t>(current_)];
  // The norm is taken in every step: by it all ranks decide alike, and without the host, whether the step is applied.
  {
    const trace::Span span(trace::Kind::update, "gradient norm");
    if (loss_scale_) backend_.copy_to_host(&result.loss_scale, loss_scale_, sizeof(LossScale), *stream_);
    clip_norm_->apply(
        {.gradients = gradients, .sums = &sums_->loss, .scalars = scalars_, .loss_scale = loss_scale_, .norm = norm_},
        memory, *stream_);
    if (loss_scale_) backend_.copy_to_host(&result.next_loss_scale, loss_scale_, sizeof(LossScale), *stream_);
  }
  backend_.copy_to_host(&result.gradient_norm, norm_, sizeof(double), *stream_);
  backend_.copy_to_host(&result.is_applied, &scalars_->is_applied, sizeof(result.is_applied), *stream_);
  {
    const trace::Span span(trace::Kind::update, "optimizer");
    optimizer_->apply(
        {.parameters = parameter_arena(), .gradients = gradients, .state = optimizer_state(), .scalars = scalars_},
        memory, *stream_);
  }
  const trace::Span span(trace::Kind::update, "running statistics");
  const std::size_t statistics = parameters().n_trainable();
  moving_average_->apply(
      {.running = parameter_arena() + statistics, .batch = gradients + statistics, .scalars = scalars_}, memory,
      *stream_);
}

StepResult Replica::result(int steps_ago) {
  if (steps_ago == 0) stream_->synchronize();
  return results_[static_cast<std::size_t>(steps_ago == 0 ? current_ : 1 - current_)];
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
  hash_->apply({.data = parameters_->data(), .hash = hash_result_}, {workspace_->data(), nullptr}, *stream_);
  std::uint64_t hash = 0;
  backend_.copy_to_host(&hash, hash_result_, sizeof(hash), *stream_);
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

// Drawing 11 million normals takes a rank longer than all else before step 0, so ranks divide the tensors: each draws
// its own into the gradients' memory, and the sum over ranks, where the others have zeros, is exact.
void Replica::initialize(std::uint32_t seed) {
  const graph::ParameterTable& table = parameters();
  const std::int64_t n_canonical = table.n_canonical();
  std::vector<const graph::Parameter*> mine;
  std::int64_t begin = 0;
  for (const graph::Parameter& p : table.parameters()) {
    const std::int64_t middle = begin + p.shape.n_elements() / 2;
    if (middle * communicator_.size() / n_canonical == communicator_.rank()) mine.push_back(&p);
    begin += p.shape.n_elements();
  }
  backend_.fill_zero(gradient_arena(), table.n_total() * sizeof(float), *stream_);
  stream_->synchronize();
#pragma omp parallel for schedule(dynamic, 1)
  for (const graph::Parameter* p : mine) write(gradient_arena() + p->begin, p, table.initial_values(*p, seed));
  const std::size_t n_tensors = table.parameters().size() + table.statistics().size();
  for (std::size_t i = 0; i < n_tensors; ++i) reducer_->tensor_done(static_cast<int>(i), *stream_);
  reducer_->finish(*stream_);
  backend_.copy_to_device(parameter_arena(), gradient_arena(), table.n_trainable() * sizeof(float), *stream_);

  for (const StateTensor& tensor : tensors()) {
    if (!tensor.path.starts_with("/statistics/")) continue;
    const float value = tensor.path.ends_with(".running_var") ? 1.0f : 0.0f;
    write(place_of(tensor), nullptr, std::vector<float>(tensor.n_elements, value));
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
                     write(place_of(tensor), tensor.parameter, values);
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
