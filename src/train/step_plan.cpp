#include "train/step_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "checkpoint/background_saver.h"
#include "config/parameter_groups.h"
#include "data/loader.h"
#include "lockstep/error.h"
#include "models/family.h"
#include "models/lora.h"
#include "tasks/language_modelling/text_sampler.h"
#include "train/offloaded_optimizer.h"
#include "train/uploader.h"

namespace lockstep::train {

namespace {

/// The maximum number of subtree sums that wait for their other half before the last micro-batch.
int max_open_sums(const SumOrder& order) {
  int open = 0, most = 0;
  for (std::size_t micro_batch = 0; micro_batch + 1 < order.merges.size(); ++micro_batch)
    most = std::max(most, open += 1 - order.merges[micro_batch]);
  return most;
}

std::vector<std::string> names_of(const graph::ParameterTable& table) {
  std::vector<std::string> names;
  for (const graph::Parameter& p : table.parameters()) names.push_back(p.name);
  return names;
}

/// The predicate of train.freeze.
std::function<bool(const std::string&)> frozen_by(const std::vector<std::string>& patterns) {
  return [patterns](const std::string& name) {
    return std::ranges::any_of(patterns, [&](const std::string& pattern) { return config::selects(pattern, name); });
  };
}

/// Throws if a pattern of the key selects no parameter.
void require_selection(const std::string& key, const std::string& pattern, const std::vector<std::string>& names) {
  require(std::ranges::any_of(names, [&](const std::string& name) { return config::selects(pattern, name); }),
          ErrorCode::config_invalid, "{}: no parameter matches {}; the nearest names are {}", key, pattern,
          config::nearest_names(pattern, names));
}

void check_freeze(const std::vector<std::string>& patterns, const graph::ParameterTable& table) {
  const std::vector<std::string> names = names_of(table);
  for (const std::string& pattern : patterns) require_selection(table.freeze_source(), pattern, names);
  require(std::ranges::any_of(table.parameters(), &graph::Parameter::trainable), ErrorCode::config_invalid,
          "{} selects all {} parameters, so that nothing would be trained", table.freeze_source(), names.size());
}

/// Throws if all parameters of a group belong to earlier groups. Such a group would be ignored silently.
void require_unshadowed(const std::string& key, const std::vector<OptimizerGroup>& groups,
                        const std::vector<std::string>& names) {
  for (std::size_t g = 1; g < groups.size(); ++g) {
    std::vector<std::string> before;  // the patterns that take its parameters
    bool is_shadowed = true;
    for (const std::string& name : names) {
      if (!config::selects(groups[g].pattern, name)) continue;
      const auto taker =
          std::ranges::find_if(groups, [&](const OptimizerGroup& o) { return config::selects(o.pattern, name); });
      is_shadowed = is_shadowed && taker - groups.begin() < static_cast<std::ptrdiff_t>(g);
      if (std::ranges::find(before, taker->pattern) == before.end()) before.push_back(taker->pattern);
    }
    require(!is_shadowed, ErrorCode::config_conflict,
            "{}: all parameters that \"{}\" selects belong to {} \"{}\" before it, so it would have no effect: put it "
            "first, or remove it",
            key, groups[g].pattern, before.size() == 1 ? "the group" : "the groups", fmt::join(before, "\", \""));
  }
}

/// Applies optimizer.groups to the segments, which are in the order of the table.
std::vector<OptimizerGroup> apply_groups(const Config& config, const graph::ParameterTable& table,
                                         std::vector<ParameterSegment>& segments) {
  const Config::Optimizer& optimizer = config.optimizer;
  const std::string key = config.places({"optimizer.groups"}) + "optimizer.groups";
  std::vector<OptimizerGroup> groups;
  const std::vector<std::string> names = names_of(table);
  for (const std::string& text : optimizer.groups) {
    const config::ParameterGroup group = config::parse_parameter_group(text);
    require_selection(key, group.pattern, names);
    groups.push_back({.pattern = group.pattern,
                      .learning_rate = group.learning_rate.value_or(optimizer.learning_rate),
                      .weight_decay = group.weight_decay.value_or(optimizer.weight_decay)});
  }
  require_unshadowed(key, groups, names);
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const graph::Parameter& parameter = table[table.order()[i]];
    const auto found = std::ranges::find_if(
        groups, [&](const OptimizerGroup& g) { return config::selects(g.pattern, parameter.name); });
    if (found == groups.end()) continue;
    ++found->n_parameters;
    // optimizer.learning_rate can be 0 only if that of the group is 0 too, so this never divides by 0.
    if (found->learning_rate != optimizer.learning_rate)
      segments[i].learning_rate_factor = static_cast<float>(found->learning_rate / optimizer.learning_rate);
    segments[i].weight_decay = static_cast<float>(found->weight_decay);
  }
  return groups;
}

OptimizerDescription describe_optimizer(const Config& config, const graph::ParameterTable& table) {
  const Config::Optimizer& o = config.optimizer;
  using Kind = OptimizerDescription::Kind;
  const Kind kind = o.kind == "adamw" ? Kind::adamw : o.kind == "lars" ? Kind::lars : Kind::sgd;
  const bool decays_biases = o.decay_norms_and_biases && kind != Kind::lars;
  return {.kind = kind,
          .momentum = static_cast<float>(o.momentum),
          .nesterov = o.nesterov,
          .weight_decay = static_cast<float>(o.weight_decay),
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .epsilon = static_cast<float>(o.epsilon),
          .trust_coefficient = static_cast<float>(o.trust_coefficient),
          .segments = table.segments({.biases = decays_biases, .norms = decays_biases && o.decay_norms}),
          .n_elements = table.n_trainable(),
          .weight_dtype = storage_type(config.precision),
          .gradient_dtype = config.train.gradient_type,
          .state_dtype = o.moments,
          .has_masters = o.masters,
          .seed = config.run.seed};
}

/// Checks train.gradient_type, optimizer.moments and optimizer.masters against the rest of the configuration.
void check_narrow_state(const Config& c) {
  const bool has_narrow_gradients = c.train.gradient_type != DType::fp32,
             has_narrow_moments = c.optimizer.moments != DType::fp32;
  if (!has_narrow_gradients && !has_narrow_moments && c.optimizer.masters) return;
  const std::string place = c.places({"train.gradient_type", "optimizer.moments", "optimizer.masters"});
  constexpr std::string_view kKeys = "train.gradient_type=bf16, optimizer.moments=bf16 and optimizer.masters=none";
  const std::pair<bool, std::string_view> needs[] = {
      {models::is_language_model(c.model.family), "a language model"},
      {storage_type(c.precision) == DType::bf16, "precision=bf16"},
      {c.optimizer.kind == "adamw", "optimizer.kind=adamw"},
      {!c.model.lora.is_on(), "model.lora.rank=0, since adapters are small"},
      {!c.ema.is_on(), "ema.decay=0"}};
  for (const auto& [is_given, what] : needs)
    require(is_given, ErrorCode::config_conflict, "{}{} need {}", place, kKeys, what);
}

void check_offload(const Config& c) {
  if (c.train.offload == "none") return;
  const std::pair<bool, std::string_view> needs[] = {{c.precision == Precision::bf16, "precision=bf16"},
                                                     {c.optimizer.kind != "lars", "optimizer.kind=adamw or sgd"},
                                                     {c.optimizer.masters, "optimizer.masters=fp32"},
                                                     {!c.ema.is_on(), "ema.decay=0"}};
  for (const auto& [is_given, what] : needs)
    require(is_given, ErrorCode::config_conflict, "{}train.offload={} needs {}", c.places({"train.offload"}),
            c.train.offload, what);
}

std::optional<LossScaling> describe_loss_scaling(const Config& config) {
  const Config::LossScale& c = config.loss_scale;
  const std::string kind = c.kind != "auto" ? c.kind : config.precision == Precision::fp16 ? "dynamic" : "none";
  if (kind == "none") return std::nullopt;
  LossScaling scaling;
  scaling.growth_steps = kind == "constant" ? 0 : static_cast<std::uint32_t>(c.growth_steps);
  scaling.max_scale = std::max(scaling.max_scale, static_cast<float>(c.initial));
  return scaling;
}

/// Running statistics are always sent as fp32: rounded to the 8-bit significand of bf16, they would change the
/// evaluation by an error of this size.
std::vector<comm::Bucket> cut_buckets(const Config& config, const graph::ParameterTable& table,
                                      const graph::GradientLayout& layout, DType wire, int n_ranks) {
  std::vector<comm::GradientTensor> tensors;
  for (graph::ParameterId id : table.order())
    tensors.push_back({.name = table[id].name,
                       .begin = table[id].begin,
                       .n_elements = table[id].n_elements,
                       .dtype = layout.dtype(table[id].begin),
                       .wire = layout.dtype(table[id].begin) == DType::fp32 ? wire : DType::bf16,
                       .can_be_sharded = table[id].begin < table.n_in_compute_type(),
                       .unit = config.train.shard == "parameters" ? table[id].unit : 0});
  for (const graph::RunningStatistic& s : table.statistics())
    if (s.trainable)
      tensors.push_back({.name = s.name, .begin = s.begin, .n_elements = 2 * static_cast<std::size_t>(s.channels)});
  // One rank sends nothing, and fewer buckets are fewer launches.
  const bool is_whole = n_ranks == 1 && config.train.offload == "none";
  const std::size_t bucket_bytes = is_whole ? std::numeric_limits<std::size_t>::max()
                                            : static_cast<std::size_t>(config.comm.bucket_mb * 1024 * 1024);
  return comm::make_buckets(tensors, bucket_bytes, config.train.shard == "none" ? 1 : n_ranks);
}

}  // namespace

StepPlan::StepPlan(const Config& config, const tasks::Task& task, const BatchShape& batch, Backend& backend,
                   comm::Topology topology)
    : config_(config), task_(task), batch_(batch), topology_(std::move(topology)) {
  check_narrow_state(config);
  check_offload(config);
  const data::DatasetInfo& set = task.train_set()->info();
  const std::vector<data::Field> fields = task.train_set()->fields();
  if (config.model.lora.is_on()) table_.set_base([](const std::string& name) { return !models::is_adapter(name); });
  table_.freeze(frozen_by(config.train.freeze), config.places({"train.freeze"}) + "train.freeze");
  const auto add = [&](const BatchShape& shape) {
    for (int micro_batch = 0; micro_batch < shape.n_micro_batches; ++micro_batch) {
      const Key key{shape.micro_batch_size(micro_batch), shape.global_micro_batch_size(micro_batch)};
      if (!training_.contains(key)) training_[key] = build(graph::Mode::train, fields, key.first, key.second, backend);
    }
  };
  add(batch_);
  const std::int64_t tail_batch = config.data.drop_last ? 0 : set.n_samples % batch.global_batch;
  if (tail_batch > 0) {
    BatchShape tail = batch_;
    tail.global_batch = tail_batch;
    require(
        tail.smallest_micro_batch() >= 1, ErrorCode::config_conflict,
        "{}data.drop_last=false leaves a last batch of {} samples, fewer than the {} micro-batches of all ranks: set "
        "data.drop_last=true, or another train.global_batch",
        config.places({"data.drop_last", "train.global_batch"}), tail_batch, tail.micro_batches_of_all());
    add(tail);
  }
  if (!config.data.validation.empty()) {
    const std::int64_t given = config.evaluation.batch_per_rank;
    evaluation_batch_ = given > 0 ? given : batch.largest_micro_batch();
    evaluation_ = build(graph::Mode::inference, task.evaluation_fields(), evaluation_batch_,
                        evaluation_batch_ * batch.ranks, backend);
    sampler_ = task.make_text_sampler(config.precision, backend, table_);
  }
  for (PlannedGraph* g : all()) {
    exchange_bytes_ = std::max(exchange_bytes_, g->graph->exchange_bytes());
    if (!largest_ || g->graph->memory().size_bytes() > largest_->graph->memory().size_bytes()) largest_ = g;
  }
  optimizer_ = describe_optimizer(config, table_);
  groups_ = apply_groups(config, table_, optimizer_.segments);
  loss_scaling_ = describe_loss_scaling(config);
  buckets_ = cut_buckets(config, table_, gradient_layout(), topology_.wire, batch_.ranks);
  std::vector<ElementRange> pieces;
  std::size_t sharded_end = 0;
  for (const comm::Bucket& bucket : buckets_) {
    if (!bucket.is_sharded()) continue;
    pieces.push_back(bucket.shard(batch_.rank));
    sharded_end = bucket.end();
  }
  shard_ = pieces.empty() && !shards_gradients() ? graph::Shard(table_) : graph::Shard(table_, pieces, sharded_end);
  if (shards_gradients()) make_slots();
  if (shards_weights()) {
    weights_.emplace(table_, compute_dtype(), shard_, buckets_, batch_.rank, batch_.ranks);
    std::vector<const graph::Graph*> graphs;
    for (const PlannedGraph* planned : all()) graphs.push_back(planned->graph.get());
    weights_->place(graphs);
  } else {
    weights_.emplace(table_);
  }
  loader_bytes_ = data::Loader::buffer_bytes(fields, batch_.largest_micro_batch(), config.data.prefetch) +
                  static_cast<std::size_t>(config.data.readers) * set.reader_bytes;
}

StepPlan::~StepPlan() = default;

PlannedGraph StepPlan::build(graph::Mode mode, std::vector<data::Field> fields, std::int64_t batch, std::int64_t global,
                             Backend& backend) {
  const graph::GraphOptions options{.mode = mode,
                                    .dtype = compute_dtype(),
                                    .gradient_dtype = config_.train.gradient_type,
                                    .tf32 = config_.precision == Precision::tf32,
                                    .fp8 = config_.precision == Precision::fp8 && mode == graph::Mode::train,
                                    .batch = batch,
                                    .layout_batch = batch_.largest_micro_batch(),
                                    .weight_gradient_stream = config_.cuda.weight_gradient_stream != "off"};
  PlannedGraph planned;
  planned.graph = std::make_unique<graph::Graph>(options, table_);
  planned.batch = std::move(fields);
  graph::Graph& graph = *planned.graph;
  tasks::Wiring wiring{
      .fields = {}, .shapes = {}, .global_batch = global, .n_micro_batches = batch_.micro_batches_of_all()};
  for (const data::Field& field : planned.batch) {
    const std::size_t size_bytes = static_cast<std::size_t>(batch) * field.size_bytes();
    planned.fields.push_back(graph.memory().add(field.name, size_bytes, /*persistent=*/true));
    wiring.fields[field.name] = planned.fields.back();
    wiring.shapes[field.name] = field.shape;
  }
  planned.sums_bytes = sizeof(StepSums) + static_cast<std::size_t>(n_losses()) * sizeof(LossSums);
  planned.sums_offset = graph.add_exchange(planned.sums_bytes);
  wiring.sums_offset = planned.sums_offset + offsetof(StepSums, loss);
  task_.wire(graph, wiring);
  if (!table_.fixed()) check_freeze(config_.train.freeze, table_);
  graph.plan(backend);
  return planned;
}

PlannedGraph& StepPlan::training(std::int64_t batch, std::int64_t global) { return training_.at({batch, global}); }

ElementRange StepPlan::range_of_norm(std::size_t number) const {
  const comm::Bucket& bucket = buckets_[number];
  if (bucket.is_sharded()) return bucket.shard(batch_.rank);
  const auto begin_of = [this](std::size_t b) {
    const std::size_t end = table_.n_trainable();
    return b < buckets_.size() ? std::min(buckets_[b].begin / kTileElements * kTileElements, end) : end;
  };
  return {begin_of(number), begin_of(number + 1) - begin_of(number)};
}

std::vector<ElementRange> StepPlan::gradient_tensors() const {
  std::vector<ElementRange> tensors;
  for (const graph::ParameterId id : table_.order()) tensors.push_back({table_[id].begin, table_[id].n_elements});
  for (const graph::RunningStatistic& s : table_.statistics())
    if (s.trainable) tensors.push_back({s.begin, 2 * static_cast<std::size_t>(s.channels)});
  return tensors;
}

std::vector<ElementRange> StepPlan::padding_of(const GradientSlot& slot) const {
  std::vector<ElementRange> padding;
  const auto add = [&](std::size_t begin, std::size_t end) {
    const ElementRange both = overlap({begin, end - begin}, slot.range);
    if (both.n_elements > 0) padding.push_back(both);
  };
  std::size_t end = 0;  // of the tensor before
  for (const ElementRange& tensor : gradient_tensors()) {
    add(end, tensor.begin);
    end = tensor.end();
  }
  // Of a tensor that reaches into the next slot, that one gets a copy.
  for (const graph::ParameterId id : table_.order())
    if (table_[id].begin >= slot.range.begin &&
        table_[id].n_elements > static_cast<std::size_t>(table_[id].shape.n_elements()))
      add(table_[id].begin, table_[id].begin + table_[id].n_elements);
  return padding;
}

std::size_t StepPlan::slot_of(std::size_t element) const {
  const auto begin_of = [](const GradientSlot& slot) { return slot.range.begin; };
  return static_cast<std::size_t>(std::ranges::upper_bound(slots_, element, {}, begin_of) - slots_.begin()) - 1;
}

// A slot is used from the first gradient, or from what the slot before it leaves over, until the next one is complete:
// its buckets are exchanged while the next one is written.
void StepPlan::make_slots() {
  const std::vector<ElementRange> tensors = gradient_tensors();
  std::size_t n_sharded = 0;
  for (; n_sharded < buckets_.size() && buckets_[n_sharded].is_sharded(); ++n_sharded) {
    const comm::Bucket& bucket = buckets_[n_sharded];
    if (slots_.empty() || slots_.back().last_tensor != bucket.last_tensor) {
      const std::size_t end = tensors[static_cast<std::size_t>(bucket.last_tensor)].end();
      slots_.push_back(
          {.first_bucket = n_sharded, .range = {bucket.begin, end - bucket.begin}, .last_tensor = bucket.last_tensor});
    }
    ++slots_.back().n_buckets;
  }
  const graph::Graph& graph = *training_.begin()->second.graph;
  const graph::ExecutionOrder& order = graph.order();
  std::vector<int> first(slots_.size(), std::numeric_limits<int>::max()), complete(slots_.size());
  for (std::size_t i = order.n_forward(); i < order.entries().size(); ++i) {
    const graph::Entry entry = order.entries()[i];
    if (entry.phase != graph::Phase::backward) continue;
    for (const graph::ParameterUse* use : graph.nodes()[static_cast<std::size_t>(entry.node)]->written_parameters()) {
      if (!use->exists() || !table_[use->id()].trainable || table_[use->id()].begin >= shard_.whole_begin()) continue;
      const std::size_t slot = slot_of(table_[use->id()].begin);
      first[slot] = std::min(first[slot], static_cast<int>(i));
      complete[slot] = static_cast<int>(i);
    }
  }
  graph::MemoryPlan memory;
  struct Use {
    int position;
    graph::TensorId tensor;
    graph::Access access;
  };
  std::vector<Use> uses;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const ElementRange& range = slots_[i].range;
    const graph::TensorId id = memory.add("slot", range.n_elements * size_bytes(gradient_layout().dtype(range.begin)));
    const int begin = i > 0 ? std::min(first[i], complete[i - 1]) : first[i];
    uses.push_back({begin, id, graph::Access::write});
    uses.push_back({complete[std::min(i + 1, slots_.size() - 1)], id, graph::Access::read});
  }
  std::ranges::stable_sort(uses, {},
                           [](const Use& use) { return std::pair(use.position, use.access != graph::Access::read); });
  for (const Use& use : uses) memory.access(use.tensor, use.position, use.access);
  memory.place();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const graph::TensorInfo& info = memory.info(static_cast<graph::TensorId>(i));
    slots_[i].memory = {info.offset, info.size_bytes};
    places_.push_back({slots_[i].range.begin, info.offset});
  }
  const graph::GradientLayout layout = gradient_layout();
  const std::size_t whole = shard_.whole_begin(), begin = graph::aligned(memory.size_bytes());
  GradientSlot rest{.first_bucket = n_sharded,
                    .n_buckets = buckets_.size() - n_sharded,
                    .range = {whole, table_.n_gradients() - whole},
                    .memory = {begin, 0},
                    .last_tensor = static_cast<int>(tensors.size()) - 1};
  places_.push_back({whole, begin});
  std::size_t end = begin + (layout.n_narrow > whole ? layout.n_narrow - whole : 0) * size_bytes(layout.narrow);
  if (layout.n_narrow > 0) places_.push_back({layout.n_narrow, end = graph::aligned(end)});
  end += (table_.n_gradients() - std::max(layout.n_narrow, whole)) * sizeof(float);
  rest.memory.n_elements = end - begin;
  slots_.push_back(rest);
  slots_bytes_ = end;
  if (!batch_.is_tree) return;
  order_ = batch_.order();
  const auto n_ranks = static_cast<std::size_t>(batch_.ranks);
  for (std::size_t source = 0; source < order_.merges.size(); source += n_ranks)
    rounds_.push_back({.merges = std::span(order_.merges).subspan(source, n_ranks),
                       .n_before = rounds_.empty() ? 0 : rounds_.back().n_after()});
}

double StepPlan::gathered_bytes() const {
  if (shards_weights()) return batch_.n_micro_batches * weights().gathered_bytes(*largest().graph);
  double sum = 0;
  for (const comm::Bucket& bucket : buckets())
    if (bucket.is_sharded()) sum += static_cast<double>(bucket.n_elements * lockstep::size_bytes(compute_dtype()));
  return sum;
}

graph::GradientLayout StepPlan::summed_layout() const {
  const graph::GradientLayout all = gradient_layout();
  const auto place = [this](std::size_t element) { return shard_.whole_stored() + element - shard_.whole_begin(); };
  return {.n_elements = place(table_.n_gradients()),
          .n_narrow = all.n_narrow > 0 ? place(all.n_narrow) : 0,
          .narrow = all.narrow};
}

std::size_t StepPlan::summed_at(std::size_t element) const {
  if (element >= shard_.whole_begin()) return shard_.whole_stored() + element - shard_.whole_begin();
  return graph::stored_at(shard_.own_pieces(), element);
}

int StepPlan::n_kept_sums() const {
  int n = 1;
  for (const SumRound& round : rounds_) n = std::max(n, round.n_after());
  return n;
}

std::vector<StateRound> StepPlan::rounds() const {
  std::vector<StateRound> rounds;
  const int n_states = optimizer_.n_states();
  for (int state = shards_parameters() ? StateTensor::kNoState : 0; state < n_states + (n_averages() > 0 ? 1 : 0);
       ++state) {
    const bool is_of_optimizer = state != StateTensor::kNoState && state < n_states;
    const DType parameters = optimizer_.has_masters ? DType::fp32 : compute_dtype();
    const std::size_t element_bytes = size_bytes(is_of_optimizer                  ? optimizer_.state_dtype
                                                 : state == StateTensor::kNoState ? parameters
                                                                                  : DType::fp32);
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      if (!buckets_[bucket].is_sharded()) continue;
      const std::size_t n_parts = std::max<std::size_t>(element_bytes / size_bytes(buckets_[bucket].dtype), 1);
      const std::size_t length = buckets_[bucket].shard(0).n_elements / n_parts;
      for (std::size_t part = 0; part < n_parts; ++part) rounds.push_back({state, bucket, part * length, length});
    }
  }
  return rounds;
}

checkpoint::Rounds rounds_of(const StepPlan& plan, std::span<const StateRound> rounds, const StateTensor& tensor) {
  const auto bucket = [&](const StateRound& round) -> const comm::Bucket& { return plan.buckets()[round.bucket]; };
  const auto of_state = std::ranges::equal_range(rounds, tensor.state, {}, &StateRound::state);
  const auto first = std::ranges::partition_point(
      of_state, [&](const StateRound& round) { return bucket(round).end() <= tensor.begin; });
  const auto last = std::ranges::partition_point(
      of_state, [&](const StateRound& round) { return bucket(round).begin < tensor.begin + tensor.n_elements; });
  return {1 + static_cast<int>(first - rounds.begin()), 1 + static_cast<int>(last - rounds.begin())};
}

std::vector<PlannedGraph*> StepPlan::all() {
  std::vector<PlannedGraph*> out;
  for (auto& [key, planned] : training_) out.push_back(&planned);
  if (evaluation_.graph) out.push_back(&evaluation_);
  return out;
}

bool StepPlan::uses_second_stream() const {
  return std::ranges::any_of(training_, [](const auto& planned) { return !planned.second.graph->forks().empty(); });
}

graph::GradientLayout StepPlan::gradient_layout() const {
  const DType narrow = config_.train.gradient_type;
  return {.n_elements = table_.n_gradients(),
          .n_narrow = narrow == DType::fp32 ? 0 : table_.n_in_compute_type(),
          .narrow = narrow,
          .places = places_,
          .placed_bytes = slots_bytes_};
}

std::vector<OptimizerDescription> StepPlan::optimizers() const {
  OptimizerDescription own = shard_.optimizer(optimizer_);
  own.gradients_are_sharded = shards_gradients();
  own.weights_are_sharded = shards_weights();
  own.parameters_are_sharded = shards_masters();
  if (offloads()) own.parameters_are_sharded = own.gradients_are_sharded = own.weights_are_sharded = true;
  if (own.has_masters && own.gradient_dtype == DType::fp32) return {own};
  const std::size_t middle = table_.n_in_compute_type();
  OptimizerDescription narrow = own, wide = own;
  wide.gradient_dtype = DType::fp32;
  wide.has_masters = true;
  wide.first = middle;
  std::erase_if(narrow.segments, [&](const ParameterSegment& s) { return s.begin >= middle; });
  std::erase_if(wide.segments, [&](const ParameterSegment& s) { return s.begin < middle; });
  return {narrow, wide};
}

std::size_t StepPlan::partial_sum_bytes() const {
  return graph::aligned(gradient_layout().size_bytes()) + graph::aligned(sizeof(LossSums));
}

std::size_t StepPlan::n_masters() const {
  if (has_all_masters()) return table_.n_with_masters();
  const graph::Shard shard = shard_of_masters();
  return shard.whole_stored() + table_.n_with_masters() - shard.whole_begin();
}

std::size_t StepPlan::upload_bytes(MemoryOf of) const {
  std::size_t size_bytes = Uploader::buffer_bytes(batch_.largest_micro_batch(), training_.begin()->second.batch);
  if (evaluation_.graph && of == MemoryOf::training_and_evaluation)
    size_bytes = std::max(size_bytes, Uploader::buffer_bytes(evaluation_batch_, evaluation_.batch));
  return size_bytes;
}

std::size_t StepPlan::n_averages() const {
  if (averages() == Averages::none) return 0;
  return shard_.whole_stored() + table_.n_gradients() - shard_.whole_begin();
}

MemoryReport StepPlan::memory(MemoryOf of) const {
  const bool evaluates = evaluation_.graph && of == MemoryOf::training_and_evaluation;
  MemoryReport m;
  m.parameters = n_masters() * sizeof(float);
  m.compute_dtype = compute_dtype();
  m.shards_masters = shards_masters();
  m.shards_optimizer = !shard_.is_whole();
  m.shards_gradients = shards_gradients();
  m.shards_weights = shards_weights();
  if (m.compute_dtype != DType::fp32) m.compute_weights = weights().stored().n_elements * size_bytes(m.compute_dtype);
  m.nf4_weights = weights().stored().n_nf4_bytes;
  m.gathered_weights = weights().size_bytes();
  m.n_in_nf4 = table_.n_in_nf4();
  m.gradients = graph::aligned(gradient_layout().size_bytes());
  if (shards_gradients()) {
    m.gradients += summed_bytes();
    m.partial_sums = static_cast<std::size_t>(n_kept_sums() - 1) * summed_bytes();
  } else if (batch_.is_tree) {
    const int n_partial_sums = max_open_sums(batch_.order_in_rank());
    m.partial_sums = static_cast<std::size_t>(n_partial_sums) * partial_sum_bytes();
  }
  m.optimizer = graph::aligned(sizeof(StepState));
  if (offloads())
    m.offloaded = OffloadedOptimizer::size_bytes(*this);
  else
    m.optimizer +=
        static_cast<std::size_t>(optimizer_.n_states()) * shard_.n_stored() * size_bytes(optimizer_.state_dtype);
  m.averages = n_averages() * sizeof(float);
  const auto count = [&](const PlannedGraph& g) {
    m.activations = std::max(m.activations, g.graph->memory().size_bytes());
    m.activations_without_reuse = std::max(m.activations_without_reuse, g.graph->memory().size_bytes_without_reuse());
    m.workspace = std::max(m.workspace, g.graph->workspace_bytes());
    m.second_workspace = std::max(m.second_workspace, g.graph->second_workspace_bytes());
  };
  for (const auto& [key, planned] : training_) {
    count(planned);
    const std::vector<ElementRange>& narrow = planned.graph->low_precision_gradients();
    if (!narrow.empty())
      m.low_precision_gradients =
          std::max(m.low_precision_gradients, narrow.back().end() * size_bytes(m.compute_dtype));
  }
  if (evaluates) count(evaluation_);
  if (evaluates && sampler_) {
    m.activations = std::max(m.activations, sampler_->activation_bytes());
    m.activations_without_reuse = std::max(m.activations_without_reuse, sampler_->activation_bytes());
    m.workspace = std::max(m.workspace, sampler_->workspace_bytes());
  }
  m.exchange = exchange_bytes();
  m.node_buffers = topology_.buffer_bytes();
  m.uploads = 2 * upload_bytes(of);
  m.loader = loader_bytes_;
  std::vector<checkpoint::TensorSource> sources;
  for (const StateTensor& tensor : state()) sources.push_back(source_of(tensor));
  m.checkpoint = checkpoint::BackgroundSaver::copy_bytes(sources, batch_.rank, batch_.ranks);
  return m;
}

}  // namespace lockstep::train
