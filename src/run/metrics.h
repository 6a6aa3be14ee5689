// What a run writes for people and programs: metrics.jsonl (one object per logged step, epoch, evaluation, list of
// samples of text and checkpoint), metrics.json (the summary), samples.txt (the newest samples), TensorBoard event
// files, the epoch line of the log, the progress bar. Rank 0 only. Keys and their units: docs/using.md. The task
// defines which figures are reported and their names: a record has one value for each of its measures.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "run/data_watch.h"
#include "tasks/task.h"

namespace lockstep::run {

/// Per rank: memory and utilisation of the device if its driver reports them, otherwise of the process (its greatest
/// memory so far; CPU seconds per second). exposed_communication_seconds: that the rank waited for others in the step;
/// rate: of its own part of the batch, in the task's unit.
struct PerRank {
  std::vector<double> loss, data_wait_seconds, memory_bytes, utilisation;
  std::vector<double> host_memory_bytes, cpu_utilisation;  // of the process, if the rank uses a device; otherwise empty
  std::vector<double> exposed_communication_seconds{}, rate{};
  std::vector<std::string> hosts{};
};

/// What a run has done so far, over all its starts. Every event records it, and a resumed run continues to count from
/// there.
struct Totals {
  double count = 0;                              // trained on, in the task's unit
  double processed = 0;                          // with what does not count in the loss
  double training_seconds = 0, run_seconds = 0;  // in steps; with evaluations and checkpoints too, without the start
  std::int64_t skipped_steps = 0;                // loss or gradient not finite, or a spike
};

struct StepRecord {
  std::int64_t step = 0, epoch = 0;  // finished ones, counted from 1
  std::int64_t samples = 0;          // so far, of all ranks
  std::vector<double> measures{};    // over all ranks
  double learning_rate = 0, gradient_norm = 0;
  std::optional<double> loss_scale{};                // of the step; no value: gradients are not scaled
  double step_seconds = 0, rate = 0, loss_rate = 0;  // loss_rate: of what counts in the loss
  double data_wait_seconds = 0, exposed_communication_seconds = 0;
  /// The time of a step's exchanges on the rank where they took the least, which is the one that waited least for
  /// others.
  std::optional<double> exchange_seconds{};
  double model_flops_rate = 0;                      // operations of the model per second, of all ranks
  std::optional<double> model_flops_utilization{};  // as a part of what their matmul reaches; no value: unknown
  double memory_bytes = 0;
  std::int64_t last_step = 0;  // at which the run ends
  int ranks = 1;
  PerRank per_rank{};
  Totals totals{};
};

struct EpochRecord {
  std::int64_t step = 0, epoch = 0, epochs = 0;
  std::int64_t count = 0;  // in the task's unit
  double learning_rate = 0;
  std::vector<double> train{}, validation{};  // measures; validation: empty if it was not evaluated
  double rate = 0, loss_rate = 0;             // of the steps
  double epoch_seconds = 0;                   // with evaluation and checkpoints
  Totals totals{};
};

struct EvaluationRecord {
  std::int64_t step = 0, epoch = 0;
  std::int64_t count = 0;                              // in the task's unit
  std::vector<double> measures{}, average_measures{};  // average_measures: of the averages of the weights, or empty
  double seconds = 0, rate = 0, loss_rate = 0;
  Totals totals{};
};

/// A prompt and what the model generated for it (evaluation.generate).
struct TextSample {
  std::string prompt, text;
};

struct SamplesRecord {
  std::int64_t step = 0, epoch = 0;
  std::vector<TextSample> samples{};
};

struct CheckpointRecord {
  std::int64_t step = 0;
  std::string path;
  /// seconds: from the copy to the rename. blocked_seconds: the part of this for which training waited.
  double seconds = 0, blocked_seconds = 0, size_bytes = 0;
  Totals totals{};  // when it was begun
};

/// Measures of evaluations: of the last one, and of all, each the best on its own. Empty: there was none.
struct Evaluated {
  std::vector<double> last, best;
  void add(const std::vector<double>& measures, std::span<const tasks::Measure> which);
};

/// The summary of the whole run, over all its starts.
struct Summary {
  std::string status;  // done | stopped | failed
  std::int64_t steps = 0, epochs = 0;
  std::vector<double> train_measures{};  // of the last step; empty: there was none
  Evaluated evaluated{}, evaluated_averages{};
  Totals totals{};
  double model_flops_rate = 0;  // of the steps of this start
  std::optional<double> model_flops_utilization{};
  DataFigures data{};  // of the rank that waited most for data
  int readers = 1;     // of a rank
  int ranks = 1;
  double memory_bytes = 0;     // peak of the rank that needs most
  double exchanged_bytes = 0;  // size of a step's buckets on a rank, in the types in which they travel
  int n_buckets = 0;
};

/// What metrics.jsonl says about the steps before a run was resumed.
struct History {
  std::int64_t step = 0;  // that the totals are about: the resumed one, or an earlier one if the run was killed
  Totals totals;
  std::vector<double> train_measures;  // of the last step; or empty
  Evaluated evaluated, evaluated_averages;
  double memory_bytes = 0;  // the peak of the steps
};

/// Count per second; 0 if no time has passed.
double rate_of(double count, double seconds);

/// What RUN/metrics.jsonl tells about a run that has no checkpoint: whether there are any events, and the step of the
/// newest checkpoint that it once had; -1: it never had one.
struct RecordedSteps {
  bool has_events = false;
  std::int64_t checkpoint = -1;
};
RecordedSteps recorded_steps(const std::string& directory);

/// How a task's figures are named.
struct Naming {
  std::span<const tasks::Measure> measures;
  tasks::CountUnit unit;
  std::span<const tasks::Measure> evaluated;  // of evaluations: begins with `measures`
};
inline Naming naming_of(const tasks::Task& task) {
  return {task.measures(), task.count_unit(), task.evaluation_measures()};
}

class Metrics {
 public:
  struct Options {
    std::string directory;  // RUN
    Naming naming{};
    std::int64_t resume_step = -1;  // lines and events beyond it are removed; -1: a fresh run, files are replaced
    bool tensorboard = true;
    /// For TensorBoard: the configuration as text, and the keys that affect what is learned.
    std::string configuration{};
    std::vector<std::pair<std::string, std::string>> hyperparameters{};
    bool enabled = true;  // false, on ranks other than 0: every call does nothing
  };
  explicit Metrics(const Options& options);
  ~Metrics();
  void step(const StepRecord&);
  void epoch(const EpochRecord&);
  void evaluation(const EvaluationRecord&);
  void samples(const SamplesRecord&);
  void checkpoint(const CheckpointRecord&);
  void summary(const Summary&);  // writes metrics.json, atomically
  /// For a start of the run that did nothing: metrics.json stays as it is, except for the status. False if it does not
  /// exist or is about another step.
  bool keep_summary(const std::string& status, std::int64_t steps);
  const History& history() const;  // empty on other ranks than 0

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// "Epoch [3/3] LR: 0.001000 | Loss (train, val): 5.149, 5.664 | Throughput: 704.9 tok/s", with each measure of the
/// task as the loss is here.
std::string epoch_line(const EpochRecord& record, const Naming& naming);

/// One object with the version, commit, compiler and every library's version: metrics.json and `lockstep --version`.
std::string versions_json();

}  // namespace lockstep::run
