// What the trainer tells while it runs: log lines, metrics, the progress bar, the epoch's means. Keeps the loop
// readable.
#pragma once

#include <memory>
#include <optional>

#include "base/clock.h"
#include "train/metrics.h"
#include "train/session.h"
#include "train/slow_rank.h"

namespace lockstep::train {

/// What one step took on this rank.
struct StepClock {
  double seconds = 0;            // end to end, waiting included
  double data_wait_seconds = 0;  // of it, for the loader
  double cpu_seconds = 0;        // of all threads
};

class Recorder {
 public:
  explicit Recorder(Session& session);

  bool logs(std::int64_t step) const;
  /// A step was given to the device: takes the time since the one before.
  StepClock lap();
  /// Its result is known (perhaps a step later). Collective on logged steps.
  void step(std::int64_t step, const StepResult& result, double learning_rate, const StepClock& clock);
  /// What comes between steps (evaluation, checkpoints) is over: the next step begins now.
  void restart_clock();
  void epoch(std::int64_t step, double learning_rate, const LossSums* validation);
  void evaluation(std::int64_t step, const LossSums& sums, double seconds);
  void checkpoint(std::int64_t step, const std::string& path, double seconds, double blocked_seconds);
  void finish(const std::string& status, std::int64_t step);

  /// Zero at an epoch's end.
  const LossSums& epoch_so_far() const { return epoch_sums_; }
  /// Of the epoch so far, or of the one that just ended.
  const LossSums& epoch_sums() const { return epoch_sums_.samples > 0 ? epoch_sums_ : last_epoch_sums_; }

 private:
  void write_step(std::int64_t step, const StepResult& result, double learning_rate, const StepClock& clock);

  void warn_of(const SlowRank& slow, const std::string& host);

  Session& session_;
  Metrics metrics_;
  std::unique_ptr<ProgressBar> bar_;
  Clock::time_point begin_, step_begin_, epoch_begin_;
  double waited_seconds_ = 0, interval_seconds_ = 0;  // since the step logged before: for sums over ranks, of all
  std::optional<Clock::time_point> last_warning_;     // of a slow rank
  double device_memory_ = -1;                         // bytes, the most that was seen; -1: not known
  double cpu_seconds_ = 0, paused_seconds_ = 0, epoch_paused_seconds_ = 0;
  std::int64_t trained_samples_ = 0, skipped_steps_ = 0;
  LossSums epoch_sums_, last_epoch_sums_;
  double resumed_samples_ = 0;  // of epoch_sums_, taken before this run was continued
  double best_accuracy_ = 0, best_loss_ = 0, final_accuracy_ = 0, final_loss_ = 0;
  bool has_best_ = false;
};

}  // namespace lockstep::train
