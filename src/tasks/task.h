// A task: what is trained. It knows the fields of a batch and what they mean, how the graph leads from them to the
// loss, what is reported of a result and when one result is better than another, and what a checkpoint records of the
// model. The trainer, the plan, the recorder and the checkpoint code ask the task, and know fields and sums alone.
//
// To add a task: a folder beside image_classification/ with a class derived from Task, and a row in task.cpp.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "graph/graph.h"
#include "lockstep/config.h"

namespace lockstep::tasks {

/// A figure that is reported of the sums over a step, an epoch or an evaluation.
struct Measure {
  std::string key;        // "accuracy": in metrics.jsonl, in TensorBoard, in --json and in the log
  std::string unit;       // in the log, behind the figure: "%"
  double scale = 1;       // of the figure in the log
  int step_digits = 4;    // behind the decimal point, in the log's lines of steps,
  int epoch_digits = 3;   // of epochs,
  int result_digits = 4;  // and of evaluations
  bool greater_is_better = false;
  double (*of)(const LossSums& sums) = nullptr;

  /// "97.5%"
  std::string text(double value, int digits) const;
};

/// What LossSums counts, over which the loss is a mean.
struct CountUnit {
  std::string name;       // "samples", in metrics.jsonl and in the log
  std::string rate_key;   // "samples_per_second", in metrics.jsonl and --json
  std::string rate_unit;  // "img/s", in the log
};

struct ModelName {
  std::string file_name;  // "resnet18", for {model} in checkpoint.name
  std::string title;      // "resnet-18"
  std::string details;    // "cifar stem, 10 classes"
};

/// What a task needs to wire a graph, besides the graph's own options.
struct Wiring {
  /// Of each field, by its name: the tensor to which a batch is copied, (batch, shape of a sample).
  std::map<std::string, graph::TensorId> fields;
  std::size_t sums_offset = 0;    // of the LossSums that the loss leaves in exchange memory, in bytes
  std::int64_t global_batch = 0;  // samples of all ranks in the micro-batch
  int micro_batches = 1;          // of all ranks in a step
};

class Task {
 public:
  virtual ~Task() = default;

  // Data
  /// Opens data.train. Throws where it is not as the model needs it.
  virtual void open_train_set() = 0;
  /// Opens data.validation, where it names a set; after open_train_set(). Throws where the two do not fit each other.
  virtual void open_validation_set() = 0;
  virtual std::shared_ptr<const data::Dataset> train_set() const = 0;
  virtual std::shared_ptr<const data::Dataset> validation_set() const = 0;  // null: there is none
  /// "32x32x3, 10 classes": the samples of the train set.
  virtual std::string describe_samples() const = 0;

  // Graph
  /// Adds the nodes from the fields to the loss.
  virtual void wire(graph::Graph& graph, const Wiring& wiring) const = 0;
  /// What LossSums counts in a step of so many samples if every one counts. The loss of each is weighted by its
  /// inverse, and the step's true count, where it is another, is put right when it is known on the device (ClipNorm).
  virtual double nominal_count(std::int64_t n_samples) const = 0;
  /// By how much a step moves the running statistics towards those of its batch.
  virtual float statistics_momentum() const = 0;

  // Results
  /// The loss is the first.
  virtual std::span<const Measure> measures() const = 0;
  virtual const CountUnit& count_unit() const = 0;
  /// Of two evaluations the one with the greater quality is better: `best` names its checkpoint.
  virtual double quality(const LossSums& evaluation) const = 0;

  // Model
  virtual ModelName model_name() const = 0;
  /// The keys of `model.` that a checkpoint records, and that must be the same where a run is resumed from one.
  virtual nlohmann::ordered_json model_stamp() const = 0;
  /// A parameter of the head may have another shape in model.initialize_from: it then keeps its initial values.
  virtual bool is_head(const std::string& parameter) const = 0;
};

/// The task of model.family. Opens no data.
std::unique_ptr<Task> make_task(const Config& config);

/// The mean loss over what was counted, a measure that every task has.
const Measure& loss_measure();
/// 0 where nothing was counted.
double mean(double sum, double count);

}  // namespace lockstep::tasks
