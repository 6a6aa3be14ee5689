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
  const bool is_sharded = tensor.state == StateTensor::kNoState ? plan_.shards_parameters() : !shard.is_whole();
  return is_sharded && tensor.begin < shard.whole_begin();
}

TypedPointer Replica::stored(int state) const {
  if (offload_) return state == StateTensor::kNoState ? TypedPointer(offload_->masters()) : offload_->state(state);
  if (state == StateTensor::kNoState && plan_.has_masters()) return const_cast<float*>(parameter_arena_.masters());
  if (state == StateTensor::kNoState)
    return {const_cast<void*>(parameter_arena_.compute_weights()), plan_.compute_dtype()};
  if (state == plan_.optimizer().n_states()) return averages_->data();
  const DType dtype = plan_.optimizer().state_dtype;
  return {optimizer_state() + static_cast<std::size_t>(state) * plan_.shard().n_stored() * size_bytes(dtype), dtype};
}

namespace {

std::byte* element(TypedPointer arena, std::size_t i) { return arena.as<std::byte>() + i * size_bytes(arena.dtype); }

}  // namespace

std::byte* Replica::place_of(const StateTensor& tensor) const {
  const bool is_offloaded = offload_ != nullptr && tensor.begin < plan_.parameters().n_trainable();
  if (tensor.state != StateTensor::kNoState || is_offloaded)
    return element(stored(tensor.state), tensor.begin - plan_.shard().whole_begin() + plan_.shard().whole_stored());
  if (tensor.dtype != DType::fp32) return element(stored(tensor.state), parameter_arena_.stored_weight(tensor.begin));
  return element(const_cast<float*>(parameter_arena_.masters()), tensor.begin - parameter_arena_.first_master());
}

std::vector<Replica::StoredPart> Replica::stored_parts(const StateTensor& tensor) const {
  if (!is_in_pieces(tensor)) return {{{0, tensor.n_elements}, place_of(tensor)}};
  std::vector<StoredPart> parts;
  for (const graph::ShardPiece& piece : plan_.shard().pieces()) {
    const ElementRange both = overlap({piece.begin, piece.n_elements}, {tensor.begin, tensor.n_elements});
    if (both.n_elements > 0)
      parts.push_back({{both.begin - tensor.begin, both.n_elements},
                       element(stored(tensor.state), piece.stored + (both.begin - piece.begin))});
  }
  return parts;
}

void Replica::read(const StateTensor& tensor, std::byte* target, Stream& stream) const {
  const std::size_t element_bytes = size_bytes(tensor.dtype);
  const ElementRange whole{tensor.begin, tensor.n_elements};
  const auto copy = [&](ElementRange from, const std::byte* data) {  // elements of the arena, of which `data` has all
    const ElementRange both = overlap(from, whole);
    if (both.n_elements > 0)
      backend_.copy(target + (both.begin - tensor.begin) * element_bytes,
                    data + (both.begin - from.begin) * element_bytes, both.n_elements * element_bytes, stream);
  };
  if (!is_in_pieces(tensor)) return copy(whole, place_of(tensor));
  const StateRound& round = rounds_.at(static_cast<std::size_t>(round_) - 1);
  const comm::Bucket& bucket = plan_.buckets()[round.bucket];
  const auto* const gathered = gradients().at(bucket.begin).as<std::byte>();
  for (int rank = 0; rank < bucket.n_shards; ++rank)
    copy({bucket.shard(rank).begin + round.begin, round.n_elements},
         gathered + static_cast<std::size_t>(rank) * round.n_elements * element_bytes);
  const std::size_t rest = plan_.shard().whole_begin();
  if (round_ + 1 == rounds_of(plan_, rounds_, tensor).end)
    copy({rest, std::max(whole.end(), rest) - rest}, element(stored(tensor.state), plan_.shard().whole_stored()));
}

// The gradients of the last step are no longer needed, so their memory holds what is gathered.
void Replica::gather(const StateRound& round) {
  gradients_hold_others_ = true;
  const comm::Bucket& bucket = plan_.buckets()[round.bucket];
  const TypedPointer from = stored(round.state);
  const TypedPointer to{gradients().at(bucket.begin).data, from.dtype};
  const auto own = std::ranges::find(plan_.shard().own_pieces(), bucket.shard(communicator_.rank()).begin,
                                     &graph::ShardPiece::begin);
  // The parts of a bucket are gathered in the same memory, and so are the states. Slots of buckets share memory.
  if (round.begin > 0 || round.bucket == 0 || plan_.shards_gradients()) wait_for_copy(*stream_);
  backend_.copy(element(to, static_cast<std::size_t>(communicator_.rank()) * round.n_elements),
                element(from, own->stored + round.begin), round.n_elements * size_bytes(from.dtype), *stream_);
  graph::StepList list;
  list.add_wait(
      list.add_start({.exchange = {.collective = Collective::all_gather,
                                   .slice = {.data = to.data,
                                             .n_elements = static_cast<std::size_t>(bucket.n_shards) * round.n_elements,
                                             .dtype = to.dtype}},
                      .label = fmt::format("state, {} to {}", bucket.first_name, bucket.last_name)}));
  list.bind(backend_, &communicator_);
  queue_alone(list);
}

void Replica::begin_round(int round) {
  if (offload_) offload_->finish(*stream_);
  round_ = round;
  round == 0 ? gather_weights() : gather(rounds_.at(static_cast<std::size_t>(round) - 1));
}

void Replica::write(TypedPointer at, std::span<const float> values) {
  std::vector<Bf16> narrow(at.dtype == DType::fp32 ? 0 : values.size());
  std::transform(values.begin(), values.begin() + std::ssize(narrow), narrow.begin(), to_bf16);
  if (narrow.empty())
    backend_.copy(at.data, values.data(), values.size_bytes(), *stream_);
  else
    backend_.copy(at.data, narrow.data(), narrow.size() * sizeof(Bf16), *stream_);
  stream_->synchronize();
}

void Replica::write_parts(const StateTensor& tensor, std::span<const float> packed) {
  for (const StoredPart& part : stored_parts(tensor))
    write({part.data, tensor.dtype}, packed.subspan(part.range.begin, part.range.n_elements));
}

void Replica::write(const StateTensor& tensor, std::span<const float> canonical) {
  weights_are_gathered_ = false;
  wait_for_copy(*stream_);
  if (offload_) offload_->finish(*stream_);
  if (tensor.state == StateTensor::kNoState) (void)parameter_arena_.edit();
  if (tensor.state == StateTensor::kNoState && offload_) (void)offload_->edit();
  if (!tensor.parameter) return write_parts(tensor, canonical);
  if (tensor.parameter->parts.size() == 1) return write_parts(tensor, graph::pack(*tensor.parameter, canonical));
  std::vector<float> packed(tensor.n_elements);  // including the other parts
  for (const StoredPart& part : stored_parts(tensor)) {
    const std::span<float> values = std::span(packed).subspan(part.range.begin, part.range.n_elements);
    std::vector<Bf16> narrow(tensor.dtype == DType::fp32 ? 0 : values.size());
    backend_.copy(narrow.empty() ? static_cast<void*>(values.data()) : narrow.data(), part.data,
                  values.size() * size_bytes(tensor.dtype), *stream_);
    stream_->synchronize();
    std::ranges::transform(narrow, values.begin(), [](Bf16 value) { return to_float(value); });
  }
  graph::pack_part(*tensor.parameter, *tensor.part, canonical, packed);
  write_parts(tensor, packed);
}

// Drawing 11 million normal numbers takes longer than everything else before step 0. With train.shard, a rank draws
// what it keeps of each tensor. Otherwise, ranks divide the tensors among them: each draws its own into the memory of
// the gradients, and the sum over ranks is exact, since all others have zeros there. Every rank draws frozen
// parameters, which have no gradients, and all others too where that memory has no place for all weights in fp32, or
// where there are no masters to copy them to.
void Replica::initialize(std::uint32_t seed) {
  const graph::ParameterTable& table = parameters();
  const graph::Shard& shard = plan_.shard();
  const bool is_divided = shard.is_whole() && plan_.has_masters() && plan_.gradient_layout().n_narrow == 0;
  float* const masters = parameter_arena_.edit();
  float* const kept = offload_ ? offload_->edit() : masters;
  auto* const weights = static_cast<std::byte*>(parameter_arena_.update().compute_weights);
  const std::size_t first = parameter_arena_.first_master();
  struct Drawn {
    const graph::Parameter* parameter;
    ElementRange range;  // of the parameter, as it is stored
    TypedPointer target;
  };
  std::vector<Drawn> drawn;
  const auto stored_bytes = [&](std::size_t i) { return parameter_arena_.stored_weight(i) * sizeof(Bf16); };
  const auto draw = [&](const graph::Parameter& p, ElementRange range) {  // of the arena
    const bool has_master = plan_.has_masters() || p.begin >= first;
    const TypedPointer target = has_master ? TypedPointer(masters + (range.begin - first))
                                           : TypedPointer{weights + stored_bytes(range.begin), DType::bf16};
    drawn.push_back({&p, {range.begin - p.begin, range.n_elements}, target});
  };
  const std::int64_t n_canonical = table.n_canonical_trainable();
  std::int64_t begin = 0;
  for (const graph::Parameter& p : table.parameters()) {
    const ElementRange whole{p.begin, p.n_elements};
    if (p.is_base) continue;
    if (!p.trainable) {
      draw(p, whole);
    } else if (is_divided) {
      const std::int64_t middle = begin + p.shape.n_elements() / 2;
      if (middle * communicator_.size() / n_canonical == communicator_.rank())
        drawn.push_back({&p, {0, p.n_elements}, gradients().at(p.begin)});
      begin += p.shape.n_elements();
    } else {
      for (const graph::ShardPiece& piece : shard.pieces()) {
        const ElementRange both = overlap({piece.begin, piece.n_elements}, whole);
        if (both.n_elements == 0) continue;
        draw(p, both);
        if (plan_.shards_masters() || offload_)
          drawn.back().target = kept + (piece.stored + (both.begin - piece.begin));
      }
    }
  }
  if (is_divided) {
    backend_.fill_zero(gradients_->data(), plan_.gradient_layout().size_bytes(), *stream_);
    stream_->synchronize();
  }
#pragma omp parallel for schedule(dynamic, 1)
  for (const Drawn& d : drawn) {
    const graph::Parameter& p = *d.parameter;
    if (!p.layout)
      write(d.target, table.initial_values(p, seed, d.range));
    else
      write(d.target, std::span<const float>(graph::pack(p, table.initial_values(p, seed)))
                          .subspan(d.range.begin, d.range.n_elements));
  }
  if (is_divided) sum_initial(masters);
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
  backend_.copy(masters, gradients_->data(), parameters().n_trainable() * sizeof(float), *stream_);
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
  averages_->start_from(parameter_arena_.masters(), *stream_);
  stream_->synchronize();
}

// The gradients of the last step are no longer needed, so their memory holds one of the two during the swap.
void Replica::swap_averages() {
  require(averages_ != nullptr, ErrorCode::internal, "the step was planned without averages of the weights");
  wait_for_copy(*stream_);
  gradients_hold_others_ = true;
  const std::span scratch(static_cast<float*>(gradients_->data()),
                          plan_.gradient_layout().size_bytes() / sizeof(float));
  averages_->swap_with(parameter_arena_.edit(), scratch, *stream_);
  stream_->synchronize();
  weights_are_gathered_ = false;
}

std::vector<checkpoint::TensorSource> Replica::sources(Stream& stream, bool waits) const {
  std::vector<checkpoint::TensorSource> out;
  for (const StateTensor& tensor : tensors()) {
    checkpoint::TensorSource& source = out.emplace_back(source_of(tensor));
    if (is_in_pieces(tensor)) source.rounds = rounds_of(plan_, rounds_, tensor);
    source.read = [this, tensor, &stream, waits](std::span<float> stored) {
      read(tensor, reinterpret_cast<std::byte*>(stored.data()), stream);
      if (!waits) return;
      stream.synchronize();
      if (is_in_pieces(tensor)) communicator_.check();  // it was gathered
    };
  }
  return out;
}

std::vector<checkpoint::TensorSource> Replica::sources() const { return sources(*stream_, true); }
std::vector<checkpoint::TensorSource> Replica::copied_sources() const { return sources(*copy_stream_, false); }

// What a round gathers may overwrite what is copied. Otherwise, only an update waits.
checkpoint::Copying Replica::copying() {
  return {.begin =
              [this](int round) {
                is_copied_->record(*copy_stream_);
                begin_round(round);
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

std::vector<checkpoint::NamedTensor> Replica::named_tensors(std::int64_t step) {
  std::vector<checkpoint::TensorSource> model;
  for (checkpoint::TensorSource& source : sources())
    if (checkpoint::is_of_model(source.path)) model.push_back(std::move(source));
  begin_round(0);
  std::vector<std::vector<float>> copies(model.size());
  for (int round = 1; plan_.shards_parameters() && round <= std::ssize(rounds_); ++round) {
    if (rounds_[static_cast<std::size_t>(round) - 1].state != StateTensor::kNoState) break;
    begin_round(round);
    for (std::size_t i = 0; i < model.size() && communicator_.rank() == 0; ++i) {
      if (!model[i].rounds.contains(round)) continue;
      copies[i].resize(model[i].n_read());
      model[i].read(copies[i]);
    }
  }
  std::vector<checkpoint::NamedTensor> out;
  for (std::size_t i = 0; i < model.size(); ++i) {
    checkpoint::TensorSource& source = model[i];
    if (!copies[i].empty())
      source.read = [copy = std::move(copies[i])](std::span<float> stored) { std::ranges::copy(copy, stored.begin()); };
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
