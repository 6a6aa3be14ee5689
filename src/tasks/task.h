// A task: what is trained. It knows the fields of a batch and their meaning, how the graph leads from them to the loss,
// which measures are reported, when one result is better than another, and what a checkpoint records about the model.
// The trainer, the plan, the recorder and the checkpoint code use the task, and know only fields and sums.
//
// To add a task, add a folder next to image_classification/ with a class derived from Task, and a row in task.cpp.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/loader.h"
#include "graph/graph.h"
#include "lockstep/config.h"
#include "lockstep/launches.h"

namespace lockstep::data {
class ImageSet;
class TextSet;
}  // namespace lockstep::data

namespace lockstep::tasks {

/// A figure that is computed from the sums over a step, an epoch or an evaluation, and reported.
struct Measure {
  std::string key;        // "accuracy": in metrics.jsonl, in TensorBoard, in --json and in the log
  std::string unit;       // in the log, after the figure: "%"
  double scale = 1;       // the log multiplies the figure by it
  int step_digits = 4;    // digits after the decimal point in the log: of a step,
  int epoch_digits = 3;   // of an epoch,
  int result_digits = 4;  // and of an evaluation
  bool greater_is_better = false;
  double (*of)(const LossSums& sums) = nullptr;  // null: it is that of answers, and not computed from sums

  /// "97.5%"
  std::string text(double value, int digits) const;
};

/// The prefix of a measure's key if the measure is that of the moving averages of the weights (ema.decay).
inline constexpr std::string_view kAverageKey = "ema_";

/// What LossSums counts. The loss is a mean over these, weighted where classes have weights.
struct CountUnit {
  std::string name;       // "samples", in metrics.jsonl and in the log
  std::string rate_key;   // "samples_per_second", in metrics.jsonl and --json
  std::string rate_unit;  // "img/s", in the log
  /// Whether not everything that is processed counts: then the rate is that of all, beside that of the loss.
  bool counts_part = false;

  std::string loss_rate_key() const { return "loss_" + rate_key; }
  /// "512.0 tokens/s (132.0 in the loss)"
  std::string rate_text(double rate, double loss_rate) const;
};

struct ModelName {
  std::string file_name;  // "resnet18", for {model} in checkpoint.name
  std::string title;      // "resnet-18"
  std::string details;    // "cifar stem, 10 classes"
};

/// What a task needs to wire a graph, besides the graph's own options.
struct Wiring {
  /// For each field, by name: the tensor to which a batch is copied, (batch, shape of a sample).
  std::map<std::string, graph::TensorId> fields;
  /// The shape of a sample of each field; packed: the maximum of each dimension.
  std::map<std::string, Shape> shapes;
  std::size_t sums_offset = 0;    // bytes: where in exchange memory the loss writes its LossSums
  std::int64_t global_batch = 0;  // samples of all ranks in the micro-batch
  int n_micro_batches = 1;        // of all ranks in a step
};

/// Detailed results of an evaluation, which only the task understands: for images, the accuracy of each class and the
/// confusion matrix. Each rank counts its own samples, and the counts of all ranks are added.
class Tally {
 public:
  virtual ~Tally() = default;
  /// `outputs`: (samples of the batch, outputs of a sample), as Inference::run returns them.
  virtual void add(const data::Batch& batch, std::span<const float> outputs) = 0;
  /// Bytes to exchange between ranks, and their addition.
  virtual std::string counts() const = 0;
  virtual void add_counts(std::string_view counts) = 0;
  /// Members for --json.
  virtual nlohmann::ordered_json json() const = 0;
  /// "top-5 accuracy 98.20%", to be appended to the measures.
  virtual std::string summary() const = 0;
  /// Tables for a terminal.
  virtual std::string text() const = 0;
  /// An SVG picture.
  virtual std::string picture(const std::string& title) const = 0;
};

class TextSampler;

class Task {
 public:
  virtual ~Task() = default;

  /// Sets the keys that the user did not set, and whose defaults depend on the model.
  virtual void complete(Config&) const {}

  // Data
  /// Opens data.train. Throws if it does not fit the model.
  virtual void open_train_set() = 0;
  /// Opens data.validation, if it names a set; after open_train_set(). Throws if the two sets do not fit each other.
  virtual void open_validation_set() = 0;
  virtual std::shared_ptr<const data::Dataset> train_set() const = 0;
  virtual std::shared_ptr<const data::Dataset> validation_set() const = 0;  // null: there is none
  /// The fields of the samples of an evaluation: those of the validation set or, if it is not open, those of the train
  /// set.
  virtual std::vector<data::Field> evaluation_fields() const {
    return validation_set() ? validation_set()->fields() : train_set()->fields();
  }
  /// "32x32x3, 10 classes": the samples of the train set.
  virtual std::string describe_samples() const = 0;

  // Graph
  /// Adds the nodes from the fields to the loss. Returns the outputs of the model, from which the loss is computed.
  virtual graph::ActivationId wire(graph::Graph& graph, const Wiring& wiring) const = 0;
  /// The count of LossSums in a step with this many samples if every sample, or every token, is counted. The loss is
  /// weighted by the inverse of this number. If the actual count differs, ClipNorm corrects the gradients on the
  /// device.
  virtual double nominal_count(std::int64_t n_samples) const = 0;
  /// What is processed for this many samples, whether it counts or not.
  virtual double processed_count(std::int64_t n_samples) const { return static_cast<double>(n_samples); }
  /// The weight with which the statistics of a step enter the running statistics.
  virtual float statistics_momentum() const = 0;

  // Results
  /// The loss is the first.
  virtual std::span<const Measure> measures() const = 0;
  /// Those of an evaluation: the same, and those of the answers to conversations (evaluation.answers).
  virtual std::span<const Measure> evaluation_measures() const { return measures(); }
  /// Null if there is none.
  const Measure* find_measure(std::string_view key) const;
  virtual const CountUnit& count_unit() const = 0;
  /// The measure that decides which of two evaluations is better, unless checkpoint.best names another one.
  virtual const Measure& quality_measure() const = 0;
  virtual std::unique_ptr<Tally> make_tally() const = 0;
  /// The sampler that generates text in evaluations (evaluation.generate, evaluation.answers), with the parameters of
  /// graphs that are already wired; null: none is generated. After open_train_set() and open_validation_set().
  virtual std::unique_ptr<TextSampler> make_text_sampler(Precision precision, Backend& backend,
                                                         graph::ParameterTable& table) const;
  /// What a step of decoding launches with a planning backend, for one sequence as long as a sample; empty: no text can
  /// be generated. After open_train_set().
  virtual std::vector<LaunchList::Entry> list_decoding(Precision, Backend&) const { return {}; }

  // Model
  virtual ModelName model_name() const = 0;
  /// The keys of `model.` that a checkpoint records. They must be unchanged when a run is resumed from it.
  virtual nlohmann::ordered_json model_stamp() const = 0;
  /// What inference needs besides the weights and model_stamp(): how samples become inputs, and what the outputs mean.
  /// Checkpoints and exported models record it. It is independent of paths and ranks. After open_train_set(), or
  /// adopt().
  virtual nlohmann::ordered_json inference_stamp() const = 0;
  /// Takes over what `source` records as inference_stamp(), so that no train set is needed. Keys of the configuration
  /// that ask for something else stay in effect. Returns one sentence for each. Throws checkpoint_damaged.
  virtual std::vector<std::string> adopt(const nlohmann::json& inference, const std::string& source) = 0;
  /// Names and contents of the files that, together with the weights, make a directory that other programs can load:
  /// config.json. Then RUN/model is such a directory, to which others are added
  /// (run/published_model.h); if there are none, the weights are written to RUN/model.safetensors. After
  /// open_train_set().
  virtual std::map<std::string, std::string> model_files() const { return {}; }
  /// A parameter of the head may have another shape in model.initialize_from; then it keeps its initial values.
  virtual bool is_head(const std::string& parameter) const = 0;
};

/// The task of model.family. Opens no data. Throws config_conflict if a key is set that this task does not use.
std::unique_ptr<Task> make_task(const Config& config);
/// The same for a resumed run, whose model a checkpoint has recorded. If a file that describes the model is gone, what
/// was recorded takes its place, and a sentence is added to `notes`.
std::unique_ptr<Task> make_resumed_task(const Config& config, const nlohmann::json& model_stamp,
                                        std::vector<std::string>& notes);

// The tasks. The second form is for sets that are open already; `validation` may be null. It throws if they do not fit
// the model or each other.
/// Batches of labelled images, cross entropy over classes, and the accuracy that is reported.
std::unique_ptr<Task> make_image_classification(const Config& config);
std::unique_ptr<Task> make_image_classification(const Config& config, std::shared_ptr<const data::ImageSet> train,
                                                std::shared_ptr<const data::ImageSet> validation);
/// Windows of tokens: a decoder predicts each token from those before it. The measures are loss and perplexity.
std::unique_ptr<Task> make_language_modelling(const Config& config);
std::unique_ptr<Task> make_language_modelling(const Config& config, std::shared_ptr<const data::TextSet> train,
                                              std::shared_ptr<const data::TextSet> validation);

/// The mean loss over what was counted, a measure that every task has.
const Measure& loss_measure();
/// 0 if nothing was counted.
double mean(double sum, double count);

// How two models differ, according to what checkpoints record about them: Task::model_stamp().

/// A key in which two stamps differ, with its values as texts: "18", or "its default" where it is absent. If the values
/// are JSON objects as text, the differing members are listed: "config.rope_theta".
struct StampDifference {
  std::string key, before, now;
};
/// In the order of the keys in `now`; keys that only `before` has come last.
std::vector<StampDifference> stamp_differences(const nlohmann::json& before, const nlohmann::ordered_json& now);

}  // namespace lockstep::tasks
