// One rank's copy of the model and all its memory: five arenas, each allocated once, and the step on them.
// The trainer begins a step and runs its micro-batches, the last of which ends it; nothing here knows which backend it
// runs on.
//
// The host runs ahead of the device by a step: what a step is given and what it tells lie in two slots of host memory
// in turn. Between them a micro-batch is the same work each time (CapturedGraph), so that a device can start it as one.
#pragma once

#include <array>
#include <cmath>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "comm/reducer.h"
#include "data/loader.h"
#include "train/device_trace.h"
#include "train/gradient_accumulator.h"
#include "train/state_tensors.h"
#include "train/step_plan.h"
#include "train/uploader.h"

namespace lockstep::train {

/// What one step told: over all ranks' samples, and this rank's own.
struct StepResult {
  LossSums sums, local;
  StepFlags flags;  // ranks that said so
  double gradient_norm = 0;
  std::uint32_t is_applied = 0;  // 0: skipped, on all ranks alike; weights, optimizer and statistics are as before
  LossScale loss_scale, next_loss_scale;  // of this step, and of the one after it
  double exposed_communication_seconds = 0;

  /// Skipped for nothing but a loss scale that was too great: it is less now.
  bool only_overflowed() const {
    return is_applied == 0 && next_loss_scale.scale < loss_scale.scale && std::isfinite(sums.loss);
  }
};

class Replica {
 public:
  Replica(StepPlan& plan, Backend& backend, Communicator& communicator);
  ~Replica();

  // One training step. `global`: samples of all ranks in micro-batches of this number.
  void begin_step(const StepScalars& scalars, const StepFlags& flags = {});
  /// Forward and backward of a micro-batch that is not the last.
  void run_micro_batch(const data::Batch& batch, int micro_batch, std::int64_t global);
  /// The last micro-batch, during whose backward buckets start on their way; then the sums over ranks, then the update.
  void finish_step(const data::Batch& batch, int micro_batch, std::int64_t global);
  /// As finish_step(), but the weights stay as they are: for tests of gradients.
  void finish_without_update(const data::Batch& batch, int micro_batch, std::int64_t global);
  /// Of the step just run (0) or of the one before it (1), for which the host has nothing to wait as a rule.
  StepResult result(int steps_ago);

  /// Loss sums of this rank's samples with running statistics.
  LossSums evaluate(const data::Batch& batch);
  /// Between steps: sums over ranks.
  StepSums sum_over_ranks(const StepSums& mine);

  // State
  /// Collective. Weights from Philox: the same on any number of ranks.
  void initialize(std::uint32_t seed);
  /// Kept from step to step, as weights are; where gradients are not scaled 1, and setting it does nothing.
  LossScale loss_scale() const;
  void set_loss_scale(const LossScale& loss_scale);
  /// Hash of parameters and running statistics: equal on all ranks, or something is wrong.
  std::uint64_t hash();
  std::vector<checkpoint::TensorSource> sources() const;
  std::vector<checkpoint::TensorTarget> targets();
  /// Parameters and running statistics under torchvision's names.
  std::vector<checkpoint::NamedTensor> named_tensors(std::int64_t step) const;
  /// Canonical gradient of a parameter after reduce(), times the loss scale, for tests.
  std::vector<float> gradient(const std::string& name) const;
  std::vector<float> parameter(const std::string& name) const;
  /// Weights from `tensors`; a head of another size keeps its initial values and is named in the result.
  std::vector<std::string> load_named(const std::vector<checkpoint::NamedTensor>& tensors);

  const graph::ParameterTable& parameters() const { return plan_.parameters(); }

 private:
  std::vector<StateTensor> tensors() const;
  float* place_of(const StateTensor& tensor) const;
  void write(float* at, const graph::Parameter* parameter, std::span<const float> canonical);
  void write(const StateTensor& tensor, std::span<const float> canonical);
  float* parameter_arena() const { return static_cast<float*>(parameters_->data()); }
  float* gradient_arena() const { return static_cast<float*>(gradients_->data()); }
  float* optimizer_state() const;
  std::vector<float> unpacked(const std::string& name, float* arena) const;
  void upload(const PlannedGraph& planned, const data::Batch& batch);
  void forward(PlannedGraph& planned, int micro_batch);
  void run_last_micro_batch(PlannedGraph& planned, int micro_batch);
  void reduce();
  void update();
  void report();
  /// Of what is given to the stream for a micro-batch: the same key, the same work.
  struct MicroBatchKey {
    std::int64_t n_samples = 0, global = 0;
    int micro_batch = 0;
    bool is_last = false;
    int slot = 0;  // of the last micro-batch, which measures time by the slot's events
    auto operator<=>(const MicroBatchKey&) const = default;
  };
  CapturedGraph& captured_graph(const MicroBatchKey& key);

  StepPlan& plan_;
  Backend& backend_;
  Communicator& communicator_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Memory> parameters_, gradients_, optimizer_memory_, activations_, workspace_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<ClipNorm> clip_norm_;
  std::unique_ptr<MovingAverage> moving_average_;
  std::unique_ptr<Hash> hash_;
  std::unique_ptr<GradientAccumulator> accumulator_;
  std::unique_ptr<comm::GradientReducer> reducer_;
  std::unique_ptr<Event> sums_ready_, sums_done_;
  std::unique_ptr<Uploader> uploader_;
  std::map<MicroBatchKey, std::unique_ptr<CapturedGraph>> captured_graphs_;
  StepState* state_ = nullptr;       // in the backend's memory, as are the next two
  LossScale* loss_scale_ = nullptr;  // null: gradients are not scaled
  StepSums* sums_ = nullptr;
  /// What a step is given and what it tells, in the host's memory.
  struct HostStep {
    StepScalars scalars;
    StepFlags flags;
    StepReport report;
  };
  struct Slot {
    HostStep* host = nullptr;
    std::unique_ptr<Event> done;
  };
  std::unique_ptr<Memory> host_memory_;
  std::array<Slot, 2> slots_;
  int current_ = 0;
  std::unique_ptr<DeviceTrace> device_trace_;  // null: none is taken
};

}  // namespace lockstep::train
