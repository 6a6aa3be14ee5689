// One rank's copy of the model and all its memory: a few arenas, each allocated once, and the step on them. Nothing
// here knows which backend it runs on, or what is trained.
//
// A step is written as
//     begin_step(); for each micro-batch { run(); }
// What a micro-batch does is a list (micro_batch.h). That of the last one includes the sums over ranks and the update.
// With train.shard, the update leaves each rank with new weights of its shard, and the next step gathers them. The host
// runs ahead of the device by one step, so the inputs and results of steps use two slots of host memory in turn. Apart
// from that, a micro-batch does the same work in every step. A device can therefore capture it as a graph
// (CapturedGraph) in the first calls, and launch the graph later.
#pragma once

#include <array>
#include <cmath>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_file.h"
#include "checkpoint/safetensors.h"
#include "data/loader.h"
#include "graph/device_trace.h"
#include "graph/parameter_arena.h"
#include "lockstep/ops/cast.h"
#include "lockstep/ops/clip_norm.h"
#include "lockstep/ops/hash.h"
#include "lockstep/ops/moving_average.h"
#include "lockstep/ops/optimizer.h"
#include "train/gradient_accumulator.h"
#include "train/micro_batch.h"
#include "train/offloaded_optimizer.h"
#include "train/state_tensors.h"
#include "train/step_plan.h"
#include "train/uploader.h"
#include "train/weight_averages.h"

namespace lockstep::checkpoint {
struct Copying;
}
namespace lockstep::test {
class ReplicaProbe;  // reads gradients
}

namespace lockstep::train {

/// The result of one step: over all ranks' samples, and over this rank's own.
struct StepResult {
  LossSums sums, local;
  StepFlags flags;  // the number of ranks that set each
  double gradient_norm = 0;
  std::uint32_t is_applied = 0;           // 0: skipped, on all ranks; weights, optimizer and statistics are unchanged
  LossScale loss_scale, next_loss_scale;  // of this step, and of the one after it
  double exposed_communication_seconds = 0;

  /// True if the step was skipped only because the loss scale was too great. The scale is smaller now.
  bool only_overflowed() const {
    return is_applied == 0 && next_loss_scale.scale < loss_scale.scale && std::isfinite(sums.loss);
  }
};

class Replica {
 public:
  Replica(StepPlan& plan, Backend& backend, Communicator& communicator);
  ~Replica();

  // One training step, in this order
  /// `shape`: of the step's batch; its last micro-batch is the last one of the step.
  void begin_step(const BatchShape& shape, const StepScalars& scalars, const StepFlags& flags = {});
  /// Runs the next micro-batch.
  void run(const data::Batch& batch);
  /// The result of the last step (0), or of the one before it (1), for which the host usually does not have to wait.
  StepResult result(int steps_ago);

  // Evaluation, with running statistics
  /// Collective. Before an evaluation, once after the last update.
  void begin_evaluation();
  /// Adds the loss sums of this rank's samples on the device; the host does not wait for them.
  void evaluate(const data::Batch& batch);
  /// Collective. The loss sums of all batches since begin_evaluation(), over all ranks.
  LossSums end_evaluation();
  /// Collective. Before the weights are read, once after the last update.
  void gather_weights();
  /// Collective. Before the sampler of the plan writes samples of text, once after the last update. It uses the memory
  /// of activations, until the next step or evaluation.
  void prepare_samples();
  /// Between steps, with ema.decay: the weights and statistics change places with their moving averages, which are then
  /// evaluated, read and exported instead of them. A second call restores both, bit by bit.
  void swap_averages();

  // State
  /// Collective. Weights from Philox, which are the same on any number of ranks. Those of a base are left out.
  void initialize(std::uint32_t seed);
  /// Collective. The base of adapters: from the tensors of a file, which may have others too, or from Philox. Throws
  /// what inference::load_parameters() throws.
  void load_base(const checkpoint::ModelFile& file, World& world);
  void initialize_base(std::uint32_t seed);
  /// The loss scale, which steps update. It is 1 if gradients are not scaled, and setting it then does nothing.
  LossScale loss_scale() const;
  void set_loss_scale(const LossScale& loss_scale);
  /// Hash of what must be equal on all ranks: parameters and running statistics; the weights in 16 bits instead, if
  /// every rank has only its shard of the masters; with train.shard=parameters, masters that every rank has, and
  /// gathered weights. Collective with train.shard.
  std::uint64_t hash();
  /// Makes the averages copies of the weights. Does nothing without ema.decay.
  void start_averages();
  std::vector<checkpoint::TensorSource> sources() const;
  /// Collective. Gathers what sources can read in this round (TensorSource::first_round), until the next one or the
  /// next step. Without train.shard there is only round 0, in which nothing has to be gathered.
  void begin_round(int round);
  /// For a BackgroundSaver: sources that only queue the copy, and the order of these copies with other work.
  std::vector<checkpoint::TensorSource> copied_sources() const;
  checkpoint::Copying copying();
  std::vector<checkpoint::TensorTarget> targets();
  /// Collective. Parameters and running statistics under torchvision's names; their averages after swap_averages(). On
  /// rank 0, what is sharded is copied to host memory; other ranks cannot read it.
  std::vector<checkpoint::NamedTensor> named_tensors(std::int64_t step);
  /// Collective. Loads weights from a file, once per node, and copies them to the averages. A head with a different
  /// shape keeps its initial values. Returns and throws what differing_heads() does, and throws what stream_tensors()
  /// throws.
  std::vector<std::string> load_named(const checkpoint::ModelFile& file, World& world);

  const graph::ParameterTable& parameters() const { return plan_.parameters(); }

 private:
  friend class test::ReplicaProbe;
  friend class MicroBatchWeaver;
  friend class UnitGathers;

  std::vector<StateTensor> tensors() const;
  std::vector<checkpoint::TensorSource> sources(Stream& stream, bool waits) const;
  /// Before the state is overwritten that a BackgroundSaver copies.
  void wait_for_copy(Stream& stream) { stream.wait_in_each_launch(*is_copied_); }
  /// Elements of a tensor that this rank has, and where they are.
  struct StoredPart {
    ElementRange range{};
    std::byte* data = nullptr;
  };
  std::vector<StoredPart> stored_parts(const StateTensor& tensor) const;
  /// Whether others have parts of the tensor that this rank does not have. They are gathered when it is read.
  bool is_in_pieces(const StateTensor& tensor) const;
  /// StateTensor::state; what this rank has of it. Parameters: their fp32 masters.
  TypedPointer stored(int state) const;
  /// Where the tensor is in the weights that ops read, or in the masters that every rank has.
  std::byte* place_of(const StateTensor& tensor) const;
  /// What can be read of the tensor in the current round.
  void read(const StateTensor& tensor, std::byte* target, Stream& stream) const;
  void gather(const StateRound& round);
  void write(TypedPointer at, std::span<const float> values);
  /// Keeps those parts that this rank has.
  void write_parts(const StateTensor& tensor, std::span<const float> packed);
  void write(const StateTensor& tensor, std::span<const float> canonical);
  /// The sum over ranks of initial values in the memory of the gradients becomes the masters.
  void sum_initial(float* masters);
  graph::GradientArena gradients() const {
    return {static_cast<std::byte*>(gradients_->data()), plan_.gradient_layout()};
  }
  std::byte* optimizer_state() const;
  /// The weights that ops read, of all ranks.
  void* shared_weights();
  /// With train.shard=parameters: the memory that stores this rank's shard of a part, and that of gathered weights.
  const std::byte* stored_weights(bool is_nf4) const;
  std::byte* gathered_weights() const { return static_cast<std::byte*>(gathered_->data()); }
  void copy_rest_of(const WeightUnit& unit, Stream& stream);
  /// Weights follow masters that were edited.
  void refresh(Stream& stream);
  /// Before each pass over a graph: its weights are up to date, and its fields on their way.
  void prepare(const PlannedGraph& planned, const data::Batch& batch);

  // Tasks of a micro-batch
  /// Adds the gradients that ops have written in 16 bits to those in fp32, or overwrites them.
  void widen_gradients(int micro_batch, ElementRange range, Stream& stream);
  // With train.shard=gradients
  void clear_gradients(ElementRange range, Stream& stream);
  /// From the slot that begins with element `slot` to the place of `range`, which is that of the next one.
  void copy_gradients(std::size_t slot, ElementRange range, Stream& stream);
  void report_local(Stream& stream);
  void add_evaluated(Stream& stream);
  void clear_tiles(Stream& stream);
  void sum_tiles(std::size_t bucket, Stream& stream);
  void report_sums(Stream& stream);
  /// The norm of the gradients, by which the device decides whether the step is applied.
  void apply_norm(Stream& stream);
  void apply_optimizer(Stream& stream);
  void update_statistics(Stream& stream);
  void update_averages(Stream& stream);
  /// Starts copying the result of the step to the host.
  void report();
  /// The key of the work that a micro-batch queues on the stream: equal keys mean equal work. It counts the same on all
  /// ranks, whatever their shards are, because NCCL does not allow one rank to replay a collective that another calls.
  struct MicroBatchKey {
    std::int64_t global_batch = 0;
    int number = 0, slot = 0;
    auto operator<=>(const MicroBatchKey&) const = default;
  };
  struct MicroBatch {
    graph::StepList list;
    std::unique_ptr<CapturedGraph> captured;
  };
  /// That which is running.
  MicroBatch& micro_batch(PlannedGraph& planned);
  std::unique_ptr<CapturedGraph> make_captured(const graph::StepList& list) const;
  /// What hash() reads as it is stored. Gathered weights come in addition.
  std::span<const std::byte> hashed() const;
  void queue(MicroBatch& micro_batch, const graph::ParameterGradients& gradients);
  void queue_alone(graph::StepList& list);

  StepPlan& plan_;
  Backend& backend_;
  Communicator& communicator_;
  std::unique_ptr<Stream> stream_, second_stream_;  // the second one is null if the plan does not use it
  std::unique_ptr<Stream> copy_stream_;             // of the copies for checkpoints
  std::unique_ptr<Event> is_complete_, is_copied_;  // the state that is copied; its copies so far
  graph::ParameterArena parameter_arena_;
  std::unique_ptr<Memory> gathered_;                   // null unless weights are sharded
  std::vector<const std::byte*> gathered_parameters_;  // Bindings::gathered
  std::unique_ptr<Memory> gradients_, low_precision_gradients_, optimizer_memory_, activations_, workspace_,
      second_workspace_;
  struct ParameterUpdate {
    OptimizerDescription description;
    std::unique_ptr<Optimizer> op;
  };
  std::vector<ParameterUpdate> updates_;
  std::unique_ptr<Cast> widen_;  // null: no gradients are in 16 bits
  std::unique_ptr<ClipNorm> clip_norm_;
  std::unique_ptr<MovingAverage> moving_average_;
  std::unique_ptr<Hash> hash_, hash_of_unit_;  // the second null unless weights are sharded
  std::unique_ptr<WeightAverages> averages_;   // null: there are none
  std::unique_ptr<GradientAccumulator> accumulator_;
  std::unique_ptr<OffloadedOptimizer> offload_;  // null: masters and state are in the memory of the backend
  graph::StepList weight_gather_;                // empty if nothing is sharded
  MicroBatch evaluation_;                        // empty without an evaluation graph
  std::unique_ptr<OrderedSum> sum_evaluation_;
  graph::StepList evaluation_sums_;
  bool weights_are_gathered_ = false;
  bool gradients_hold_others_ = false;  // the memory of the gradients was used for something else
  std::vector<StateRound> rounds_;      // from round 1 on
  int round_ = 0;                       // the current one
  std::unique_ptr<Uploader> uploader_;
  std::map<MicroBatchKey, MicroBatch> micro_batches_;
  StepState* state_ = nullptr;       // in the backend's memory, as are the next two
  LossScale* loss_scale_ = nullptr;  // null: gradients are not scaled
  StepSums* sums_ = nullptr;
  double* tile_sums_ = nullptr;  // ClipNorm::SumTiles
  /// The inputs and the report of a step, in the host's memory.
  struct HostStep {
    StepScalars scalars;
    StepFlags flags;
    StepReport report;
  };
  struct Slot {
    HostStep* host = nullptr;
    std::unique_ptr<Event> done;
    const graph::StepList* list = nullptr;  // of the last micro-batch
  };
  std::unique_ptr<Memory> host_memory_;
  std::array<Slot, 2> slots_;
  int current_ = 0;  // slot
  /// The current step, and the micro-batch in it.
  struct Running {
    BatchShape shape;
    int micro_batch = -1;
    bool is_last() const { return micro_batch + 1 == shape.n_micro_batches; }
  };
  Running running_;
  std::vector<void*> upload_targets_;                 // one for each field
  std::unique_ptr<graph::DeviceTrace> device_trace_;  // null: no trace is recorded
};

/// Checks that `tensors` can be the weights of this model. Returns one sentence per tensor of the head that has another
/// shape; any other difference throws checkpoint_mismatch.
std::vector<std::string> differing_heads(const StepPlan& plan, const std::vector<checkpoint::NamedTensor>& tensors);

/// Collective: checks that all ranks hold the same bits. Throws replicas_differ on every rank, naming the rank and host
/// whose hash differs from that of the majority.
void require_equal_replicas(World& world, std::uint64_t hash, std::int64_t steps_done);

}  // namespace lockstep::train
