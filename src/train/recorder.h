// What the trainer reports while it runs: log lines, metrics, the progress bar, and the sums of the epoch. Keeps the
// training loop readable.
#pragma once

#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/progress_bar.h"
#include "data/loader.h"
#include "lockstep/ops/step_scalars.h"
#include "run/data_watch.h"
#include "run/metrics.h"
#include "train/session.h"

namespace lockstep::train {

/// The time that one step took on this rank.
struct StepClock {
  double seconds = 0;                        // end to end, waiting included
  double data_wait_seconds = 0;              // part of it: waiting for the loader
  double cpu_seconds = 0;                    // of all threads
  data::LoaderUsage loader{};                // up to now
  std::optional<double> exchange_seconds{};  // up to now: Communicator::exchange_seconds()
};

/// The result of an evaluation, of the weights or of their averages.
struct EvaluationResult {
  LossSums sums;
  std::vector<double> measures;          // Task::evaluation_measures()
  double loss_seconds = 0, seconds = 0;  // seconds: with the answers
};

class Recorder {
 public:
  explicit Recorder(Session& session);

  bool logs(std::int64_t step) const;
  /// A step was queued: the time since the previous step.
  StepClock lap();
  /// What this rank sends to the others with the next step.
  void write_flags(StepFlags& flags);
  /// To be called when the result of a step is known (perhaps one step later). Collective on logged steps, and if a
  /// flag asks for it.
  void step(std::int64_t step, const StepResult& result, double learning_rate, const StepClock& clock);
  /// To be called when the results of all steps are known and something else follows: the time until now belongs to the
  /// last step.
  void pause();
  /// Evaluation and checkpoints between steps have finished: the next step begins now.
  void restart_clock();
  void epoch(std::int64_t step, double learning_rate, const LossSums* validation);
  /// `of_averages`: of the averages of the weights; null: there are none.
  void evaluation(std::int64_t step, const EvaluationResult& result, const EvaluationResult* of_averages);
  void samples(std::int64_t step, const std::vector<run::TextSample>& samples);
  /// `totals`: when the checkpoint was begun.
  void checkpoint(std::int64_t step, const std::string& path, double seconds, double blocked_seconds,
                  const run::Totals& totals);
  void finish(const std::string& status, std::int64_t step);
  /// The totals of the run so far, over all its starts.
  run::Totals totals() const;
  /// The rank for which the others have waited, on average over the logged steps of this start, during more than
  /// log.slow_rank_percent of their time. The same on all ranks.
  std::optional<run::SlowRank> slow_rank() const;

  /// Zero at an epoch's end.
  const LossSums& epoch_so_far() const { return epoch_sums_; }
  /// The sums of the epoch so far, or of the one that just ended.
  const LossSums& epoch_sums() const { return epoch_sums_.count > 0 ? epoch_sums_ : last_epoch_sums_; }
  std::vector<double> measures_of(const LossSums& sums) const;  // Task::measures(); NaN if nothing was counted

 private:
  void write_step(std::int64_t step, const StepResult& result, double learning_rate, const StepClock& clock);
  void gather_ranks(run::StepRecord& record, std::int64_t step, const StepResult& result, const StepClock& clock);
  void warn_of_slow_rank();
  void count_data(const StepClock& clock);
  void report_data(bool is_logged);
  void continue_totals();
  std::string text_of(const std::vector<double>& measures, int tasks::Measure::*digits) const;

  Session& session_;
  const run::Naming naming_;
  run::Metrics metrics_;
  std::unique_ptr<ProgressBar> bar_;
  Clock::time_point begin_, step_begin_, epoch_begin_;
  double waited_seconds_ = 0, interval_seconds_ = 0;  // since the last logged step: waiting for sums over ranks, of all
  double exchange_seconds_ = 0;                       // StepClock::exchange_seconds of the last logged step
  int interval_steps_ = 0;                            // since then
  std::vector<double> waits_;                         // of each rank, up to the last logged step: part of its time
  std::vector<double> wait_sums_;                     // of each rank: the sum of waits_ over the logged steps
  int n_waits_ = 0;                                   // terms of these sums
  std::vector<std::string> hosts_;                    // of each rank
  std::optional<Clock::time_point> last_warning_;     // of a slow rank
  std::optional<data::LoaderUsage> first_usage_;      // up to the first step of this start
  run::DataUsage data_;                               // of this rank, since then
  run::DataWatch data_watch_;                         // of all ranks
  double device_memory_ = -1;                         // bytes, the greatest that was seen; -1: not known
  double memory_peak_ = 0;                            // bytes, of the rank that needs most, in the logged steps
  double cpu_seconds_ = 0;
  double flops_ = 0, flops_seconds_ = 0;  // of the steps of this start
  run::Totals totals_;                    // run_seconds: of earlier starts only
  // Of the epoch, in this start: what counts in the loss, all that is processed, and the time of its steps
  double epoch_count_ = 0, epoch_processed_ = 0, epoch_training_seconds_ = 0;
  bool has_worked_ = false;  // this start has made a step or an evaluation
  LossSums epoch_sums_, last_epoch_sums_;
  std::vector<double> final_train_;  // measures of the last step; empty: there was none
  run::Evaluated evaluated_, evaluated_averages_;
};

}  // namespace lockstep::train
