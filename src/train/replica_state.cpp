// The state of a replica: initial weights, and the tensors that checkpoints and exported models read and write.
#include <algorithm>

#include "checkpoint/background_saver.h"
#include "checkpoint/tensor_names.h"
#include "checkpoint/tensor_stream.h"
#include "inference/inference.h"
#include "lockstep/bf16.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "train/replica.h"

namespace lockstep::train {

std::vector<StateTensor> Replica::tensors() const { return plan_.state(); }

bool Replica::is_in_pieces(const StateTensor& tensor) const {
  const graph::Shard& shard = plan_.shard();
  const bool is_sharded = tensor.state == StateTensor::kNoState ? plan_.shards_masters() : !shard.is_whole();
  return is_sharded && tensor.begin < shard.whole_begin();
}

TypedPointer Replica::stored(int state) const {
  if (state == StateTensor::kNoState) return const_cast<float*>(parameter_arena_.masters());
  if (state == plan_.optimizer().n_states()) return averages_->data();
  const DType dtype = plan_.optimizer().state_dtype;
  return {optimizer_state() + static_cast<std::size_t>(state) * plan_.shard().n_stored() * size_bytes(dtype), dtype};
}

namespace {

void* element(TypedPointer arena, std::size_t i) { return arena.as<std::byte>() + i * size_bytes(arena.dtype); }

}  // namespace

void* Replica::in_gradients(int state, std::size_t begin) const {
  return element({gradients_->data(), stored(state).dtype}, begin);
}

const void* Replica::place_of(const StateTensor& tensor) const {
  if (is_in_pieces(tensor)) return in_gradients(tensor.state, tensor.begin);
  if (tensor.state != StateTensor::kNoState)
    return element(stored(tensor.state), tensor.begin - plan_.shard().whole_begin() + plan_.shard().whole_stored());
  if (tensor.dtype != DType::fp32)
    return static_cast<const std::byte*>(parameter_arena_.compute_weights()) + tensor.begin * size_bytes(tensor.dtype);
  return parameter_arena_.masters() + (tensor.begin - parameter_arena_.first_master());
}

void* Replica::place_to_write(const StateTensor& tensor) {
  weights_are_gathered_ = false;
  wait_for_copy(*stream_);
  if (is_in_pieces(tensor)) {
    if (written_state_ != tensor.state) {
      store_written();
      copy_pieces_to_gradients(tensor.state);
      written_state_ = tensor.state;
    }
  } else if (tensor.state == StateTensor::kNoState) {
    (void)parameter_arena_.edit();
  }
  return const_cast<void*>(place_of(tensor));
}

void Replica::copy_pieces_to_gradients(int state) {
  const TypedPointer from = stored(state);
  wait_for_copy(*stream_);
  for (const graph::ShardPiece& piece : plan_.shard().own_pieces())
    backend_.copy(in_gradients(state, piece.begin), element(from, piece.stored),
                  piece.n_elements * size_bytes(from.dtype), *stream_);
}

void Replica::store_written() {
  if (!written_state_) return;
  if (*written_state_ == StateTensor::kNoState) (void)parameter_arena_.edit();
  const TypedPointer to = stored(*written_state_);
  for (const graph::ShardPiece& piece : plan_.shard().own_pieces())
    backend_.copy(element(to, piece.stored), in_gradients(*written_state_, piece.begin),
                  piece.n_elements * size_bytes(to.dtype), *stream_);
  stream_->synchronize();
  written_state_.reset();
}

// The gradients of the last step are no longer needed, so their memory holds the whole state while it is read.
void Replica::gather_state(int group) {
  store_written();
  if (plan_.shard().is_whole()) return;
  const int state = group - 1;  // source_of()
  if (state == StateTensor::kNoState && !plan_.shards_masters()) return gather_weights();
  require(state < plan_.optimizer().n_states() + (averages_ ? 1 : 0), ErrorCode::internal,
          "the optimizer has no state {}", state);
  copy_pieces_to_gradients(state);
  graph::StepList gather = gather_list(plan_, gradients_->data(), stored(state).dtype, "state");
  gather.bind(backend_, &communicator_);
  queue_alone(gather);
}

/// If `parameter` is null, the values stay in canonical form.
void Replica::write(TypedPointer at, const graph::Parameter* parameter, std::span<const float> canonical) {
  const std::vector<float> packed = parameter ? graph::pack(*parameter, canonical) : std::vector<float>();
  const std::span<const float> values = parameter ? std::span<const float>(packed) : canonical;
  std::vector<Bf16> narrow(at.dtype == DType::fp32 ? 0 : values.size());
  std::transform(values.begin(), values.begin() + std::ssize(narrow), narrow.begin(), to_bf16);
  if (narrow.empty())
    backend_.copy(at.data, values.data(), values.size_bytes(), *stream_);
  else
    backend_.copy(at.data, narrow.data(), narrow.size() * sizeof(Bf16), *stream_);
  stream_->synchronize();
}

void Replica::write(const StateTensor& tensor, std::span<const float> canonical) {
  const TypedPointer at{place_to_write(tensor), tensor.dtype};
  if (!tensor.parameter || tensor.parameter->parts.size() == 1) return write(at, tensor.parameter, canonical);
  std::vector<float> packed(tensor.n_elements);  // including the other parts
  std::vector<Bf16> narrow(at.dtype == DType::fp32 ? 0 : packed.size());
  backend_.copy(narrow.empty() ? static_cast<void*>(packed.data()) : narrow.data(), at.data,
                packed.size() * size_bytes(at.dtype), *stream_);
  stream_->synchronize();
  std::ranges::transform(narrow, packed.begin(), [](Bf16 value) { return to_float(value); });
  graph::pack_part(*tensor.parameter, *tensor.part, canonical, packed);
  write(at, nullptr, packed);
}

// Drawing 11 million normal numbers takes longer than everything else before step 0, so ranks divide the tensors among
// them. Each rank draws its own tensors into the memory of the gradients. The sum over ranks is exact, since all others
// have zeros there. Frozen parameters have no gradients, so every rank draws all of those; and all others too where
// that memory has not place for all weights in fp32, or where there are no masters to copy them to.
void Replica::initialize(std::uint32_t seed) {
  const graph::ParameterTable& table = parameters();
  const bool is_alone = !plan_.has_masters() || plan_.gradient_layout().n_narrow > 0;
  const std::int64_t n_canonical = table.n_canonical_trainable();
  std::vector<const graph::Parameter*> mine, whole;  // drawn for all ranks, and by all ranks
  std::int64_t begin = 0;
  for (const graph::Parameter& p : table.parameters()) {
    if (p.is_base) continue;
    if (!p.trainable || is_alone) whole.push_back(&p);
    if (!p.trainable) continue;
    const std::int64_t middle = begin + p.shape.n_elements() / 2;
    if (!is_alone && middle * communicator_.size() / n_canonical == communicator_.rank()) mine.push_back(&p);
    begin += p.shape.n_elements();
  }
  backend_.fill_zero(gradients_->data(), plan_.gradient_layout().size_bytes(), *stream_);
  stream_->synchronize();
#pragma omp parallel for schedule(dynamic, 1)
  for (const graph::Parameter* p : mine) write(gradients().at(p->begin), p, table.initial_values(*p, seed));
  float* const masters = parameter_arena_.edit();
  const std::size_t first = parameter_arena_.first_master();
  auto* const weights = static_cast<std::byte*>(parameter_arena_.update().compute_weights);
#pragma omp parallel for schedule(dynamic, 1)
  for (const graph::Parameter* p : whole) {
    const bool has_master = plan_.has_masters() || p->begin >= first;
    const TypedPointer narrow{has_master ? nullptr : weights + p->begin * sizeof(Bf16), DType::bf16};
    write(has_master ? TypedPointer(masters + (p->begin - first)) : narrow, p, table.initial_values(*p, seed));
  }
  if (!is_alone) sum_initial(masters);
  weights_are_gathered_ = false;

  for (const StateTensor& tensor : tensors()) {
    if (!checkpoint::is_in(checkpoint::StateGroup::statistics, tensor.path)) continue;
    const float value = tensor.path.ends_with(".running_var") ? 1.0f : 0.0f;
    write(tensor, std::vector<float>(tensor.n_elements, value));
  }
  start_averages();
}

void Replica::sum_initial(float* masters) {
  graph::StepList sums;
  for (const comm::Bucket& bucket : plan_.buckets())  // in fp32, whatever type gradients are sent in
    sums.add_wait(sums.add_start(
        {.exchange = {.slice = {.data = gradients().at(bucket.begin).data, .n_elements = bucket.n_elements}},
         .label = "initial weights"}));
  sums.bind(backend_, &communicator_);
  queue_alone(sums);
  for (const graph::ShardPiece& piece : plan_.shard().pieces()) {
    float* const to = masters + (plan_.shards_masters() ? piece.stored : piece.begin);
    backend_.copy(to, gradients().at(piece.begin).data, piece.n_elements * sizeof(float), *stream_);
  }
}

void Replica::load_base(const checkpoint::ModelFile& file, World& world) {
  backend_.unfreeze();  // weights are rounded through a buffer
  inference::load_parameters(file, parameters(), inference::Loaded::base, parameter_arena_, *stream_, world);
  backend_.freeze();
}

void Replica::initialize_base(std::uint32_t seed) {
  backend_.unfreeze();  // see load_base()
  for (const graph::Parameter& p : parameters().parameters())
    if (p.is_base) parameter_arena_.write(p, 0, graph::pack(p, parameters().initial_values(p, seed)), *stream_);
  backend_.freeze();
}

void Replica::start_averages() {
  if (!averages_) return;
  store_written();
  averages_->start_from(parameter_arena_.masters(), *stream_);
  stream_->synchronize();
}

// The gradients of the last step are no longer needed, so their memory holds one of the two sets during the swap.
void Replica::swap_averages() {
  require(averages_ != nullptr, ErrorCode::internal, "the step was planned without averages of the weights");
  store_written();
  wait_for_copy(*stream_);
  averages_->swap_with(parameter_arena_.edit(), static_cast<float*>(gradients_->data()), *stream_);
  stream_->synchronize();
  weights_are_gathered_ = false;
}

std::vector<checkpoint::TensorSource> Replica::sources(Stream& stream, bool waits) const {
  std::vector<checkpoint::TensorSource> out;
  for (const StateTensor& tensor : tensors()) {
    out.push_back(source_of(tensor));
    out.back().read = [this, tensor, &stream, waits](std::span<float> stored) {
      backend_.copy(stored.data(), place_of(tensor), stored.size_bytes(), stream);
      if (!waits) return;
      stream.synchronize();
      if (is_in_pieces(tensor)) communicator_.check();  // it was gathered
    };
  }
  return out;
}

std::vector<checkpoint::TensorSource> Replica::sources() const { return sources(*stream_, true); }
std::vector<checkpoint::TensorSource> Replica::copied_sources() const { return sources(*copy_stream_, false); }

// A group is gathered in the memory from which the one before it is copied. Otherwise, only an update waits.
checkpoint::Copying Replica::copying() {
  return {.begin =
              [this](int group) {
                is_copied_->record(*copy_stream_);
                gather_state(group);
                is_complete_->record(*stream_);
                copy_stream_->wait(*is_complete_);
              },
          .end = [this] { is_copied_->record(*copy_stream_); },
          .wait =
              [this] {
                backend_.enter_thread();
                is_copied_->synchronize();
              },
          .backend = backend_.memory_space() == MemorySpace::device ? &backend_ : nullptr};
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
  for (const checkpoint::TensorSource& source : sources()) {
    if (!checkpoint::is_of_model(source.path)) continue;
    out.emplace_back(checkpoint::tensor_name(source.path), source.shape,
                     checkpoint::read_at_once([source] { return checkpoint::read_canonical(source); }));
  }
  for (const graph::RunningStatistic& s : parameters().statistics())
    out.emplace_back(s.name + ".num_batches_tracked", Shape{}, std::vector{static_cast<float>(step)});
  return out;
}

namespace {

/// Returns null if there is no tensor of this name.
const checkpoint::NamedTensor* find(const std::vector<checkpoint::NamedTensor>& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &checkpoint::NamedTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

}  // namespace

std::vector<std::string> differing_heads(const StepPlan& plan, const std::vector<checkpoint::NamedTensor>& tensors) {
  std::vector<std::string> kept;
  for (const StateTensor& tensor : plan.state()) {
    if (!checkpoint::is_of_model(tensor.path)) continue;
    const std::string name = checkpoint::tensor_name(tensor.path);
    const checkpoint::NamedTensor* const found = find(tensors, name);
    require(found != nullptr, ErrorCode::checkpoint_mismatch,
            "model.initialize_from: the file has no tensor {} of shape {}", name, tensor.shape.text());
    if (found->shape == tensor.shape) continue;
    const std::string shapes = fmt::format("{} has the shape {} in the file and {} in the model", name,
                                           found->shape.text(), tensor.shape.text());
    require(plan.task().is_head(name), ErrorCode::checkpoint_mismatch, "model.initialize_from: {}", shapes);
    kept.push_back(shapes);
  }
  return kept;
}

std::vector<std::string> Replica::load_named(const checkpoint::ModelFile& file, World& world) {
  const std::vector<std::string> kept = differing_heads(plan_, file.tensors);
  std::vector<checkpoint::NamedTensor> tensors;
  std::vector<checkpoint::TensorTarget> written;
  for (checkpoint::TensorTarget& target : targets()) {
    if (!checkpoint::is_of_model(target.path)) continue;
    const checkpoint::NamedTensor* const found = find(file.tensors, checkpoint::tensor_name(target.path));
    if (found->shape != target.shape) continue;
    tensors.push_back(*found);
    written.push_back(std::move(target));
  }
  std::vector<float> values;
  checkpoint::stream_tensors(file.path, tensors, world, [&](const checkpoint::TensorPiece& piece) {
    values.insert(values.end(), piece.values.begin(), piece.values.end());
    if (values.size() < tensors[piece.tensor].n_elements()) return;
    written[piece.tensor].write(values);
    values.clear();
  });
  start_averages();
  return kept;
}

void require_equal_replicas(World& world, std::uint64_t hash, std::int64_t steps_done) {
  const std::vector<std::string> all = world.all_gather(fmt::format("{:016x} {}", hash, world.host()));
  const auto hash_of = [&](std::size_t r) { return all[r].substr(0, 16); };
  std::size_t most = 0;
  std::ptrdiff_t greatest_count = 0;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const std::ptrdiff_t count = std::count_if(
        all.begin(), all.end(), [&](const std::string& other) { return other.substr(0, 16) == hash_of(r); });
    if (count > greatest_count) {
      most = r;
      greatest_count = count;
    }
  }
  for (std::size_t r = 0; r < all.size(); ++r)
    require(hash_of(r) == hash_of(most), ErrorCode::replicas_differ,
            "after step {} the weights of rank {} on {} differ from those of rank {} (hashes {} and {})", steps_done, r,
            all[r].substr(17), most, hash_of(r), hash_of(most));
}

}  // namespace lockstep::train
