// Everything about a rank's step that is known before memory is allocated: the graphs, the parameters and all sizes.
// `lockstep plan` prints a StepPlan; a Replica is a StepPlan with its arenas.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/buckets.h"
#include "comm/topology.h"
#include "data/dataset.h"
#include "graph/graph.h"
#include "graph/shard.h"
#include "lockstep/config.h"
#include "lockstep/loss_scale.h"
#include "lockstep/op.h"
#include "lockstep/ops/optimizer.h"
#include "tasks/task.h"
#include "train/batch_shape.h"
#include "train/state_tensors.h"
#include "train/weight_units.h"

namespace lockstep::train {

// The inputs, the state and the report of a step, as plain structs that are copied between host, device and ranks.

/// The flags that ranks exchange in every step. A rank writes its own flags (0 or 1) before the step; all ranks read
/// the same sums, the number of ranks that set each flag, with the step's result.
struct StepFlags {
  double stop_requests = 0;  // a signal asked this rank to stop
  double save_due = 0;       // a checkpoint is due by the clock, which only rank 0 checks
  double saver_done = 0;     // the background writer has finished its phase
  double report_due = 0;     // a report on the data is due by the clock, which only rank 0 checks
};

/// The sums as numbers, in the order in which checkpoints store them. The weight is included only if classes have
/// weights.
inline std::vector<double> numbers_of(const LossSums& sums) {
  std::vector<double> numbers{sums.loss, sums.correct, sums.count};
  if (sums.weight != sums.count) numbers.push_back(sums.weight);
  return numbers;
}
/// Zero if `numbers` are not those of numbers_of().
inline LossSums loss_sums(std::span<const double> numbers) {
  if (numbers.size() != 3 && numbers.size() != 4) return {};
  return {.loss = numbers[0], .correct = numbers[1], .count = numbers[2], .weight = numbers.back()};
}

/// What is summed over ranks once per step besides gradients: in exchange memory, by one all-reduce of doubles.
struct StepSums {
  LossSums loss;
  StepFlags flags;
  static constexpr std::size_t kElements = (sizeof(LossSums) + sizeof(StepFlags)) / sizeof(double);
};
static_assert(sizeof(StepSums) == StepSums::kElements * sizeof(double));

/// The result of a step. It is put together in the backend's memory, and copied to the host as one.
struct StepReport {
  StepSums sums;   // over ranks
  LossSums local;  // this rank's
  double gradient_norm = 0;
  std::uint32_t is_applied = 0;  // 0: skipped, on all ranks alike; weights, optimizer and statistics are as before
  LossScale loss_scale, next_loss_scale;  // in force in this step, and in the one after it
};

/// The small state that steps keep in the backend's memory, at the head of the optimizer's arena.
struct StepState {
  StepScalars scalars;  // new in each step
  LossScale loss_scale;
  StepReport report;
  LossSums evaluation;  // of this rank's batches so far
  std::uint64_t hash = 0;
};

/// One planned graph, and the positions of its data and its sums.
struct PlannedGraph {
  std::unique_ptr<graph::Graph> graph;
  std::vector<data::Field> batch;       // the fields of the data set whose batches it processes
  std::vector<graph::TensorId> fields;  // where the data of each of them goes
  std::size_t sums_offset = 0;          // of StepSums in exchange memory
  std::size_t sums_bytes = 0;           // with the losses of all micro-batches behind them (StepPlan::n_losses)

  /// Whether ranks exchange something in the middle of it (synchronised statistics), and not only at the step's end.
  bool has_exchanges() const { return graph->exchange_bytes() > graph::aligned(sums_bytes); }
};

/// Bytes of memory of a rank, by kind.
struct MemoryReport {
  std::size_t parameters = 0;       // fp32 masters, of this rank's shard where they are sharded, and running statistics
  std::size_t compute_weights = 0;  // the same in compute_dtype; 0 in fp32
  DType compute_dtype = DType::fp32;
  std::size_t nf4_weights = 0;       // of a base, in NF4
  std::int64_t n_in_nf4 = 0;         // their parameters
  std::size_t gathered_weights = 0;  // of a few units at a time
  bool shards_masters = false, shards_optimizer = false, shards_gradients = false, shards_weights = false;
  std::size_t gradients = 0, partial_sums = 0, optimizer = 0, activations = 0, workspace = 0;
  std::size_t second_workspace = 0;         // of weight gradients on a second stream
  std::size_t low_precision_gradients = 0;  // in compute_dtype, of weights whose ops write no fp32
  std::size_t averages = 0;                 // of the weights (ema.decay): sharded as the optimizer's states
  std::size_t activations_without_reuse = 0;
  std::size_t exchange = 0;      // small sums between ranks, after the gradients
  std::size_t node_buffers = 0;  // of a node's leader, for the data of other nodes
  std::size_t uploads = 0;       // batches on their way to the device, in its memory
  std::size_t loader = 0;        // batches read ahead
  std::size_t offloaded = 0;     // in host memory, with the buffers for copies: train.offload
  std::size_t checkpoint = 0;    // copy of this rank's part that a background thread writes
  std::size_t total() const {
    return parameters + compute_weights + nf4_weights + gathered_weights + gradients + low_precision_gradients +
           partial_sums + optimizer + averages + activations + workspace + second_workspace + exchange + node_buffers +
           uploads + loader + offloaded + checkpoint;
  }
};

/// A part of a sharded state that ranks gather at once, in the memory of a bucket's gradients: the same elements of
/// each rank's shard of the bucket. If the state has wider elements than the gradients, a shard has several such parts.
struct StateRound {
  int state = StateTensor::kNoState;
  std::size_t bucket = 0;
  std::size_t begin = 0, n_elements = 0;  // of each shard
};

/// With train.shard=gradients: the memory for the gradients of buckets that are complete at the same time, which later
/// ones use again. It begins with what the buckets before have left over of their last tensor.
struct GradientSlot {
  std::size_t first_bucket = 0, n_buckets = 0;
  ElementRange range{};   // of the arena
  ElementRange memory{};  // bytes
  int last_tensor = 0;
};

enum class MemoryOf : std::uint8_t { training_and_evaluation, training };

/// An entry of optimizer.groups.
struct OptimizerGroup {
  std::string pattern;
  double learning_rate = 0, weight_decay = 0;  // as configured
  int n_parameters = 0;                        // trained tensors that it applies to
};

class StepPlan {
 public:
  /// The task's train set must be open. An evaluation graph is planned if data.validation names a set, for its fields
  /// if it is open, and otherwise for those of the train set. `topology`: of the communicator.
  StepPlan(const Config& config, const tasks::Task& task, const BatchShape& batch, Backend& backend,
           comm::Topology topology);
  ~StepPlan();

  /// The training graph for a micro-batch of `batch` samples, `global` over all ranks.
  PlannedGraph& training(std::int64_t batch, std::int64_t global);
  /// The number of samples that a rank processes at once in the evaluation graph; 0 without one.
  std::int64_t evaluation_batch() const { return evaluation_batch_; }
  PlannedGraph* evaluation() { return evaluation_.graph ? &evaluation_ : nullptr; }
  /// The sampler that writes samples of text in evaluations; null: no samples are written.
  tasks::TextSampler* sampler() const { return sampler_.get(); }
  const PlannedGraph& largest() const { return *largest_; }
  graph::ParameterTable& parameters() { return table_; }
  const graph::ParameterTable& parameters() const { return table_; }
  const BatchShape& batch() const { return batch_; }
  const Config& config() const { return config_; }
  /// The type of activations, and of the weights that ops read.
  DType compute_dtype() const { return storage_type(config_.precision); }
  const OptimizerDescription& optimizer() const { return optimizer_; }  // of all parameters
  /// The part of this rank; without train.shard, the whole model.
  const graph::Shard& shard() const { return shard_; }
  /// Whether masters and the state of the optimizer are in host memory (train.offload).
  bool offloads() const { return config_.train.offload == "optimizer"; }
  /// Whether weights that ops read in 16 bits have fp32 masters beside them, if there are such weights
  /// (optimizer.masters).
  bool has_masters() const { return optimizer_.has_masters && !offloads(); }
  /// Whether a rank stores only its shards of the weights that ops read.
  bool shards_weights() const { return config_.train.shard == "parameters" && batch_.ranks > 1; }
  /// Where they are stored, and when they are gathered.
  const WeightUnits& weights() const { return *weights_; }
  /// Whether a rank has only its shard of the fp32 masters: ops read other weights.
  bool shards_masters() const {
    return !shard_.is_whole() && (compute_dtype() != DType::fp32 || shards_weights()) && has_masters();
  }
  /// Whether a rank has only its shard of what checkpoints store of the parameters.
  bool shards_parameters() const { return shards_masters() || shards_weights() || (offloads() && !shard_.is_whole()); }
  /// The part of the masters that a rank has.
  graph::Shard shard_of_masters() const {
    return has_masters() ? shard_ : graph::Shard(table_, {}, table_.n_in_compute_type());
  }
  /// Whether the arena of masters has all parameters, so that it alone tells whether replicas are equal.
  bool has_all_masters() const { return !shards_masters() && has_masters(); }
  /// Where ops write gradients.
  graph::GradientLayout gradient_layout() const;
  /// Whether a rank keeps only the sums of its shard of the gradients.
  bool shards_gradients() const { return config_.train.shards_gradients() && batch_.ranks > 1; }
  /// How often gradients are summed over ranks in a step.
  int n_sums() const { return shards_gradients() ? batch_.n_micro_batches : 1; }
  /// The weights that a step gathers.
  double gathered_bytes() const;
  /// The slots of sharded buckets, and one for all others, which is not used by any other one.
  const std::vector<GradientSlot>& gradient_slots() const { return slots_; }
  /// The slot of a tensor or bucket that begins with this element.
  std::size_t slot_of(std::size_t element) const;
  /// The sums of gradients that a rank keeps, as its states are stored, and then those that every rank has.
  graph::GradientLayout summed_layout() const;
  /// The element of that layout; the rank has the sum.
  std::size_t summed_at(std::size_t element) const;
  /// From one set of these sums to the next: sums of a tree that wait for their other half.
  std::size_t summed_bytes() const { return graph::aligned(summed_layout().size_bytes()); }
  /// The part of the order of sums that a micro-batch of each rank adds.
  SumRound round_of(int micro_batch) const {
    return rounds_.empty() ? SumRound{} : rounds_[static_cast<std::size_t>(micro_batch)];
  }
  /// How many sets of these sums a rank keeps at once.
  int n_kept_sums() const;
  /// The losses of micro-batches that ranks exchange one by one; 0: each rank sends their sum.
  int n_losses() const { return batch_.is_interleaved ? batch_.n_shards() : 0; }
  /// The updates of this rank: one, or one for each type of gradients or of parameters.
  std::vector<OptimizerDescription> optimizers() const;
  /// Elements of the arena of fp32 masters.
  std::size_t n_masters() const;
  Averages averages() const { return config_.ema.is_on() ? Averages::kept : Averages::none; }
  /// Elements of the moving averages of this rank: its shard of the weights, as of a state of the optimizer, and then
  /// the statistics. 0: there are none.
  std::size_t n_averages() const;
  /// In which rounds sharded states are gathered, state by state, in the order of StateTensor::state.
  std::vector<StateRound> rounds() const;
  /// The tensors of a checkpoint.
  std::vector<StateTensor> state() const { return state_tensors(table_, optimizer_, averages()); }
  /// The sums of squares of the gradients' tiles (ClipNorm), in exchange memory.
  std::size_t tile_sums_offset() const { return exchange_bytes_; }
  std::size_t tile_sums_bytes() const { return n_tiles_of(table_.n_trainable()) * sizeof(double); }
  const std::vector<OptimizerGroup>& optimizer_groups() const { return groups_; }
  /// No value: gradients are not scaled.
  const std::optional<LossScaling>& loss_scaling() const { return loss_scaling_; }
  /// `of`: with `training`, the memory that would be needed without evaluations.
  MemoryReport memory(MemoryOf of = MemoryOf::training_and_evaluation) const;
  std::size_t exchange_bytes() const { return exchange_bytes_ + graph::aligned(tile_sums_bytes()); }
  /// Device memory of the largest batch that is uploaded.
  std::size_t upload_bytes(MemoryOf of = MemoryOf::training_and_evaluation) const;
  const tasks::Task& task() const { return task_; }
  /// Bytes of the sum of a subtree of this rank's micro-batches: gradients, batch statistics and, at the end, the loss.
  std::size_t partial_sum_bytes() const;
  /// Gradients and batch statistics, cut into buckets.
  const std::vector<comm::Bucket>& buckets() const { return buckets_; }
  /// The tiles of the gradient norm that a rank sums when a bucket is summed over ranks: those of its own shard of a
  /// sharded bucket. Of any other one, those that are complete with it, since the buckets before it are summed, too.
  ElementRange range_of_norm(std::size_t bucket) const;
  std::vector<PlannedGraph*> all();
  /// The elements of a slot that ops may not write: those between tensors, and tensors whose layout has padding.
  std::vector<ElementRange> padding_of(const GradientSlot& slot) const;
  /// The tensors of gradients in the order of the arena: their elements.
  std::vector<ElementRange> gradient_tensors() const;
  /// Whether weight gradients run on a second stream (cuda.weight_gradient_stream; auto counts as on).
  bool uses_second_stream() const;

 private:
  using Key = std::pair<std::int64_t, std::int64_t>;  // samples of this rank's micro-batch, of all ranks'
  PlannedGraph build(graph::Mode mode, std::vector<data::Field> fields, std::int64_t batch, std::int64_t global,
                     Backend& backend);
  void make_slots();

  Config config_;
  const tasks::Task& task_;
  BatchShape batch_;
  comm::Topology topology_;
  std::int64_t evaluation_batch_ = 0;
  graph::ParameterTable table_;
  std::map<Key, PlannedGraph> training_;
  PlannedGraph evaluation_;
  std::unique_ptr<tasks::TextSampler> sampler_;
  const PlannedGraph* largest_ = nullptr;
  OptimizerDescription optimizer_;
  std::vector<OptimizerGroup> groups_;
  std::optional<LossScaling> loss_scaling_;
  std::vector<comm::Bucket> buckets_;
  std::optional<WeightUnits> weights_;
  std::vector<GradientSlot> slots_;
  std::vector<graph::GradientLayout::Place> places_;
  std::size_t slots_bytes_ = 0;
  SumOrder order_;                // over all micro-batches, with train.shard=gradients
  std::vector<SumRound> rounds_;  // its parts; empty: micro-batches are not summed in a tree
  graph::Shard shard_;
  std::size_t exchange_bytes_ = 0;  // of the graphs
  std::size_t loader_bytes_ = 0;
};

/// The rounds in which a sharded tensor is read, counted from 1: StepPlan::rounds()[0] is round 1.
checkpoint::Rounds rounds_of(const StepPlan& plan, std::span<const StateRound> rounds, const StateTensor& tensor);

}  // namespace lockstep::train
