#include "train/step_plan.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>

#include "checkpoint/background_saver.h"
#include "comm/sum_order.h"
#include "lockstep/error.h"
#include "models/model.h"
#include "train/state_tensors.h"
#include "train/uploader.h"

namespace lockstep::train {

int BatchShape::shards_of(int of_rank) const {
  const auto r = static_cast<std::size_t>(of_rank);
  return first_shard[r + 1] - first_shard[r];
}

data::Shard BatchShape::samples(int of_rank, int micro_batch) const {
  const int first = first_shard[static_cast<std::size_t>(of_rank)];
  if (is_tree) return data::shard_of(global_batch, first + micro_batch, n_shards());
  const data::Shard shard = data::shard_of(global_batch, first, n_shards());
  const data::Shard cut = data::shard_of(shard.size(), micro_batch, n_micro_batches);
  return {shard.begin + cut.begin, shard.begin + cut.end};
}

std::int64_t BatchShape::global_micro_batch_size(int number) const {
  if (is_tree) return micro_batch_size(number);
  std::int64_t sum = 0;
  for (int r = 0; r < ranks; ++r) sum += samples(r, number).size();
  return sum;
}

// The first ranks and the first micro-batches have the sample more, the last ones the sample less (data::shard_of).
std::int64_t BatchShape::largest_micro_batch() const { return samples(0, 0).size(); }
std::int64_t BatchShape::smallest_micro_batch() const {
  return samples(ranks - 1, is_tree ? shards_of(ranks - 1) - 1 : n_micro_batches - 1).size();
}

namespace {

/// The tree over all micro-batches, taken apart at ranks.
comm::GroupedOrder order_of(const BatchShape& shape) {
  std::vector<int> sizes;
  for (int r = 0; r < shape.ranks; ++r) sizes.push_back(shape.shards_of(r));
  std::optional<comm::GroupedOrder> order = comm::group(comm::tree_order(shape.n_shards()), sizes);
  require(order.has_value(), ErrorCode::internal, "the micro-batches of a rank are no subtree");
  return std::move(*order);
}

/// Sums of subtrees that wait for their other half, at most, before the last micro-batch.
int most_open_sums(const SumOrder& order) {
  int open = 0, most = 0;
  for (std::size_t micro_batch = 0; micro_batch + 1 < order.merges.size(); ++micro_batch)
    most = std::max(most, open += 1 - order.merges[micro_batch]);
  return most;
}

}  // namespace

SumOrder BatchShape::order_in_rank() const { return order_of(*this).inner[static_cast<std::size_t>(rank)]; }
SumOrder BatchShape::order_over_ranks() const { return is_tree ? order_of(*this).outer : SumOrder{}; }

namespace {

/// train.micro_batches: micro-batches are shards, and ranks take subtrees of them.
BatchShape tree_shape(const Config& config, int rank, int ranks) {
  require(config.comm.gradients == "fp32", ErrorCode::config_conflict,
          "comm.gradients={} rounds what a node sends, so the bits depend on the nodes: set comm.gradients=fp32 with "
          "train.micro_batches",
          config.comm.gradients);
  const int n_shards = config.train.micro_batches;
  require(ranks <= n_shards, ErrorCode::config_conflict,
          "train.micro_batches={} gives each of {} ranks less than one: use at most {} ranks, or more micro-batches",
          n_shards, ranks, n_shards);
  BatchShape shape{.global_batch = config.train.global_batch, .rank = rank, .ranks = ranks, .is_tree = true};
  shape.first_shard = {0};
  for (const int size : comm::subtree_sizes(n_shards, ranks)) shape.first_shard.push_back(shape.n_shards() + size);
  shape.n_micro_batches = shape.shards_of(rank);
  return shape;
}

}  // namespace

std::int64_t asked_global_batch(const Config& config, int ranks) {
  const Config::Train& t = config.train;
  if (t.global_batch > 0) return t.global_batch;
  return std::max<std::int64_t>(0, t.batch_per_rank) * ranks * std::max(1, t.accumulate);
}

BatchShape batch_shape(const Config& config, int rank, int ranks) {
  if (config.train.micro_batches > 0) return tree_shape(config, rank, ranks);
  const int n_micro_batches = config.train.accumulate;
  BatchShape shape{.global_batch = asked_global_batch(config, ranks),
                   .rank = rank,
                   .ranks = ranks,
                   .n_micro_batches = n_micro_batches};
  shape.first_shard.resize(static_cast<std::size_t>(ranks) + 1);
  std::iota(shape.first_shard.begin(), shape.first_shard.end(), 0);
  require(shape.smallest_micro_batch() >= 1, ErrorCode::config_conflict,
          "a global batch of {} samples cannot be divided over {} ranks x {} accumulated micro-batches: use at most {} "
          "ranks, "
          "or a larger train.global_batch",
          shape.global_batch, ranks, n_micro_batches, std::max<std::int64_t>(1, shape.global_batch / n_micro_batches));
  return shape;
}

std::pair<std::vector<float>, std::vector<float>> normalization(const Config& config,
                                                                const data::ImageSetInfo& images) {
  const auto pick = [&](const std::vector<double>& given, const std::vector<float>& own, const char* key) {
    if (given.empty()) return own;
    require(given.size() == static_cast<std::size_t>(images.channels), ErrorCode::config_range,
            "{}: {} values were given, the images of {} have {} channels", key, given.size(), images.path,
            images.channels);
    return std::vector<float>(given.begin(), given.end());
  };
  return {pick(config.data.mean, images.mean, "data.mean"), pick(config.data.std, images.stddev, "data.std")};
}

namespace {

OptimizerDescription describe_optimizer(const Config& config, const graph::ParameterTable& table) {
  const Config::Optimizer& o = config.optimizer;
  using Kind = OptimizerDescription::Kind;
  const Kind kind = o.kind == "adamw" ? Kind::adamw : o.kind == "lars" ? Kind::lars : Kind::sgd;
  return {.kind = kind,
          .momentum = static_cast<float>(o.momentum),
          .nesterov = o.nesterov,
          .weight_decay = static_cast<float>(o.weight_decay),
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .epsilon = static_cast<float>(o.epsilon),
          .trust_coefficient = static_cast<float>(o.trust_coefficient),
          .segments = table.segments(o.decay_norms_and_biases && kind != Kind::lars),
          .n_elements = table.n_trainable()};
}

std::optional<LossScaling> describe_loss_scaling(const Config& config) {
  const Config::LossScale& c = config.loss_scale;
  const std::string kind = c.kind != "auto" ? c.kind : config.precision == Precision::fp16 ? "dynamic" : "none";
  if (kind == "none") return std::nullopt;
  LossScaling scaling;
  scaling.growth_steps = kind == "constant" ? 0 : static_cast<std::uint32_t>(c.growth_steps);
  scaling.greatest = std::max(scaling.greatest, static_cast<float>(c.initial));
  return scaling;
}

/// Running statistics always go as fp32: rounded to 8 bits they would be off by as much in evaluation.
std::vector<comm::Bucket> cut_buckets(const Config& config, const graph::ParameterTable& table, DType wire) {
  std::vector<comm::GradientTensor> tensors;
  for (graph::ParameterId id : table.order())
    tensors.push_back({table[id].name, table[id].begin, table[id].n_elements, wire});
  for (const graph::RunningStatistic& s : table.statistics())
    tensors.push_back({s.name, s.begin, 2 * static_cast<std::size_t>(s.channels), DType::fp32});
  return comm::make_buckets(tensors, static_cast<std::size_t>(config.comm.bucket_mb * 1024 * 1024));
}

}  // namespace

StepPlan::StepPlan(const Config& config, const data::ImageSetInfo& images, const BatchShape& batch, Backend& backend,
                   comm::Topology topology)
    : config_(config), batch_(batch), topology_(std::move(topology)) {
  const auto add = [&](const BatchShape& shape) {
    for (int micro_batch = 0; micro_batch < shape.n_micro_batches; ++micro_batch) {
      const Key key{shape.micro_batch_size(micro_batch), shape.global_micro_batch_size(micro_batch)};
      if (!training_.contains(key)) training_[key] = build(graph::Mode::train, key.first, key.second, images, backend);
    }
  };
  add(batch_);
  const std::int64_t tail_batch = config.data.drop_last ? 0 : images.n_samples % batch.global_batch;
  if (tail_batch > 0) {
    BatchShape tail = batch_;
    tail.global_batch = tail_batch;
    require(tail.smallest_micro_batch() >= 1, ErrorCode::config_conflict,
            "data.drop_last=false leaves a last batch of {} samples, fewer than the {} micro-batches of all ranks: set "
            "data.drop_last=true, or another train.global_batch",
            tail_batch, tail.micro_batches_of_all());
    add(tail);
  }
  if (!config.data.validation.empty()) {
    const std::int64_t given = config.evaluation.batch_per_rank;
    evaluation_batch_ = given > 0 ? given : batch.largest_micro_batch();
    evaluation_ = build(graph::Mode::inference, evaluation_batch_, evaluation_batch_ * batch.ranks, images, backend);
  }
  for (PlannedGraph* g : all()) {
    exchange_bytes_ = std::max(exchange_bytes_, g->graph->exchange_bytes());
    if (!largest_ || g->graph->memory().size_bytes() > largest_->graph->memory().size_bytes()) largest_ = g;
  }
  optimizer_ = describe_optimizer(config, table_);
  loss_scaling_ = describe_loss_scaling(config);
  buckets_ = cut_buckets(config, table_, topology_.wire);
  image_bytes_ = images.image_bytes();
  loader_bytes_ = static_cast<std::size_t>(config.data.prefetch + 2) *
                      static_cast<std::size_t>(batch_.largest_micro_batch()) * (images.image_bytes() + 8) +
                  static_cast<std::size_t>(config.data.readers) * images.reader_bytes;
}

PlannedGraph StepPlan::build(graph::Mode mode, std::int64_t batch, std::int64_t global,
                             const data::ImageSetInfo& images, Backend& backend) {
  PlannedGraph planned;
  planned.graph = std::make_unique<graph::Graph>(graph::GraphOptions{.mode = mode,
                                                                     .dtype = storage_type(config_.precision),
                                                                     .tf32 = config_.precision == Precision::tf32,
                                                                     .batch = batch,
                                                                     .layout_batch = batch_.largest_micro_batch()},
                                                 table_);
  const auto wanted = [&](const char* what) {
    return std::find(config_.data.augment.begin(), config_.data.augment.end(), what) != config_.data.augment.end();
  };
  const auto [mean, stddev] = normalization(config_, images);
  graph::Graph& graph = *planned.graph;
  const graph::ActivationId input = layers::image_input(graph,
                                                        {.height = images.height,
                                                         .width = images.width,
                                                         .channels = images.channels,
                                                         .mean = mean,
                                                         .stddev = stddev,
                                                         .crop_padding = wanted("crop") ? config_.data.crop_padding : 0,
                                                         .flip = wanted("flip"),
                                                         .seed = config_.run.seed},
                                                        planned.buffers);
  const graph::ActivationId logits = models::build(graph, input, config_.model,
                                                   {.epsilon = static_cast<float>(config_.batch_norm.epsilon),
                                                    .synchronize = config_.batch_norm.synchronize,
                                                    .global_batch = global,
                                                    .micro_batches = batch_.micro_batches_of_all()});
  planned.sums_offset = graph.add_exchange(sizeof(StepSums));
  layers::cross_entropy(graph, logits, planned.buffers, static_cast<float>(config_.train.label_smoothing),
                        planned.sums_offset + offsetof(StepSums, loss));
  graph.plan(backend);
  return planned;
}

PlannedGraph& StepPlan::training(std::int64_t batch, std::int64_t global) { return training_.at({batch, global}); }

std::vector<PlannedGraph*> StepPlan::all() {
  std::vector<PlannedGraph*> out;
  for (auto& [key, planned] : training_) out.push_back(&planned);
  if (evaluation_.graph) out.push_back(&evaluation_);
  return out;
}

std::size_t StepPlan::partial_sum_bytes() const {
  return table_.n_gradients() * sizeof(float) + graph::aligned(sizeof(LossSums));
}

MemoryReport StepPlan::memory() const {
  MemoryReport m;
  m.parameters = table_.n_total() * sizeof(float);
  m.gradients = table_.n_gradients() * sizeof(float);
  if (batch_.is_tree) {
    const int n_partial_sums = most_open_sums(batch_.order_in_rank());
    m.partial_sums = static_cast<std::size_t>(n_partial_sums) * partial_sum_bytes();
  }
  m.optimizer = graph::aligned(sizeof(StepState)) +
                static_cast<std::size_t>(optimizer_.n_states()) * optimizer_.n_elements * sizeof(float);
  const auto count = [&](const PlannedGraph& g) {
    m.activations = std::max(m.activations, g.graph->memory().size_bytes());
    m.activations_without_reuse = std::max(m.activations_without_reuse, g.graph->memory().size_bytes_without_reuse());
    m.workspace = std::max(m.workspace, g.graph->workspace_bytes());
  };
  for (const auto& [key, planned] : training_) count(planned);
  if (evaluation_.graph) count(evaluation_);
  m.exchange = exchange_bytes_;
  m.node_buffers = topology_.buffer_bytes();
  m.mapped_peers = topology_.mapped_peer_bytes(m.gradients);
  m.uploads = Uploader::size_bytes(upload_samples(), image_bytes_);
  m.loader = loader_bytes_;
  std::vector<checkpoint::TensorSource> sources;
  for (const StateTensor& tensor : state_tensors(table_, optimizer_)) sources.push_back(source_of(tensor));
  m.checkpoint = checkpoint::BackgroundSaver::copy_bytes(sources, batch_.rank, batch_.ranks);
  return m;
}

}  // namespace lockstep::train
