// The evaluations of a training run on its validation set.
#pragma once

#include <optional>

#include "train/recorder.h"
#include "train/session.h"

namespace lockstep::train {

/// What a value of checkpoint.best means. auto: the task's measure, or the training loss if there is no validation set.
struct BestFigure {
  const tasks::Measure& measure;
  bool is_of_averages = false;  // of the weights (ema.decay)
  bool operator==(const BestFigure& other) const {
    return measure.key == other.measure.key && is_of_averages == other.is_of_averages;
  }
};
BestFigure figure_of_best(const std::string& best, const tasks::Task& task);

/// The evaluations of a run on the validation set, if it has one.
class Validation {
 public:
  Validation(Session& session, Recorder& recorder) : session_(session), recorder_(recorder) {}

  bool is_due_after(std::int64_t step) const;
  /// True if the run resumes from a checkpoint without a quality: it was stopped before the end of a due evaluation.
  bool was_interrupted() const;
  /// Collective. With ema.decay, the averages of the weights are evaluated too. False on all ranks when a stop request
  /// on any rank interrupted it.
  bool run(std::int64_t steps_done);
  /// The sums of the last run(), with the weights themselves.
  const LossSums& sums() const { return result_.sums; }
  /// Greater is better: the quality of the evaluation that was just run; without a validation set, of the epoch's
  /// training. No value if it was not measured.
  std::optional<double> quality(bool evaluated) const;
  /// Early stopping: the evaluations so far ask the run to end (evaluation.patience).
  bool ends_run() const { return session_.progress.patience.is_exhausted(); }

 private:
  /// The quality from the last run() or, without a validation set, from the epoch's training.
  double last_quality() const;
  /// Collective. No value if a signal asks any rank to stop.
  std::optional<EvaluationResult> measure(std::int64_t steps_done, checkpoint::WeightsOf weights);
  /// Collective: evaluation.answers. Adds the measures of the answers, which are written to RUN/answers/ for `lockstep
  /// evaluate`; false if none are asked for. Throws StoppedBySignal on all ranks.
  bool add_answers(std::int64_t steps_done, checkpoint::WeightsOf weights, std::vector<double>& measures);
  /// Collective: evaluation.generate. A stop request on any rank interrupts it, and nothing is written.
  void write_samples(std::int64_t steps_done);

  Session& session_;
  Recorder& recorder_;
  EvaluationResult result_, average_result_;  // of the last run()
};

}  // namespace lockstep::train
