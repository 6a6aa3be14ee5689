// A model that only computes outputs: the weights of a file and the graph for inference, without gradients, optimizer,
// communicator or train set. `evaluate` and `predict` use it. Nothing here knows what the samples and the outputs are.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/model_file.h"
#include "data/loader.h"
#include "graph/parameter_arena.h"
#include "lockstep/communicator.h"
#include "lockstep/config.h"
#include "models/tensor_shapes.h"
#include "tasks/task.h"

namespace lockstep::inference {

models::TensorShapes shapes_of(const std::vector<checkpoint::NamedTensor>& tensors);

/// The configuration with the keys that the file `path` records, each as key=value. Throws
/// checkpoint_damaged, with the name of that file, if a value is not possible.
Config parse_recorded(const std::vector<std::string>& keys, const std::string& path);

/// Sets the keys of `model.` in `config` to what the file records, or to what its config.json describes. A file that
/// has neither must contain a ResNet with torchvision's names: then they follow from its tensors. Throws
/// checkpoint_mismatch, or checkpoint_damaged.
void set_model(Config& config, const checkpoint::ModelFile& file);
/// Throws checkpoint_mismatch if a directory with a config.json does not contain exactly the tensors of this model.
void check_tensors(const Config::Model& model, const checkpoint::ModelFile& file);

/// Keeps parameters in the order in which they were added. In training, the order of the gradients differs, but that is
/// irrelevant for inference.
void fix_order_for_inference(graph::ParameterTable& table);
/// Which parameters are loaded: those of a base only, or all of them with the running statistics.
enum class Loaded : std::uint8_t { base, all };
/// Throws checkpoint_mismatch, with the file's name, if a tensor is missing or has another shape.
void check_places(const checkpoint::ModelFile& file, const graph::ParameterTable& table, Loaded loaded);
/// Loads parameters once per node, tensor by tensor. Collective. Throws what check_places() and stream_tensors() throw.
void load_parameters(const checkpoint::ModelFile& file, const graph::ParameterTable& table, Loaded loaded,
                     graph::ParameterArena& parameters, Stream& stream, World& world);

class Inference {
 public:
  /// Makes the graph for batches of at most `capacity` samples with these fields. The task has adopted a description,
  /// or its train set is open. `config`: model and precision. Task and backend must outlive it.
  Inference(const Config& config, const tasks::Task& task, std::span<const data::Field> fields, Backend& backend,
            std::int64_t capacity);

  /// Throws what load_parameters() throws.
  void load(const checkpoint::ModelFile& file, World& world);

  struct Result {
    LossSums sums;                   // of samples with a label
    std::span<const float> outputs;  // (samples, n_outputs()), before the softmax; valid until two more start()s
  };
  /// Queues a batch, which must not change until its finish().
  void start(const data::Batch& batch);
  /// Waits for the oldest batch that was started. At most two may be in flight, so that the device computes the next
  /// batch while the caller reads this result.
  Result finish();
  Result run(const data::Batch& batch) {
    start(batch);
    return finish();
  }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t n_outputs() const { return n_outputs_; }  // of a sample

 private:
  Backend& backend_;
  std::int64_t capacity_, n_outputs_ = 0;
  graph::ParameterTable table_;
  std::unique_ptr<graph::Graph> graph_;
  std::vector<data::Field> batch_;       // the fields of a batch,
  std::vector<graph::TensorId> fields_;  // and where their data go
  graph::TensorId output_ = graph::kNoTensor;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<graph::ParameterArena> parameters_;
  std::unique_ptr<graph::ForwardArenas> arenas_;
  std::unique_ptr<CapturedGraph> captured_;
  struct Slot {
    std::byte* host = nullptr;  // LossSums, and then the outputs
    std::int64_t n_samples = 0;
    std::unique_ptr<Event> done;
  };
  std::unique_ptr<Memory> host_memory_;
  std::array<Slot, 2> slots_;
  int n_started_ = 0, n_finished_ = 0;
};

/// Loss sums and the task's tally over the first config.evaluation.max_samples (0: all) of a set, each sample counted
/// once. Collective; all ranks get the result. A signal on any rank makes all throw StoppedBySignal.
struct Evaluation {
  LossSums sums;
  std::unique_ptr<tasks::Tally> tally;
};
Evaluation evaluate(Inference& inference, const Config& config, const tasks::Task& task,
                    std::shared_ptr<const data::Dataset> set, Backend& backend, World& world, const std::string& title);

// How an evaluation reads its set: each of the first evaluation.max_samples samples (0: all) once, in their order, in
// batches that are divided among the ranks.

/// Whether the ranks meet after this step. A rank that waits in a collective for longer than the watchdog allows ends
/// the job, so ranks meet often.
inline bool is_meeting(std::int64_t step, const World& world) { return world.size() == 1 || step % 8 == 0; }

/// Of the samples of a set.
std::int64_t evaluated_samples(const Config& config, const data::Dataset& set);

/// `capacity`: samples of a rank per step. `last_step` of the result is the number of steps.
data::LoaderOptions evaluation_loader(const Config& config, const data::Dataset& set, std::int64_t capacity,
                                      const World& world, Backend& backend);

}  // namespace lockstep::inference
