#include "train/trainer.h"

#include <optional>

#include "base/stop_signal.h"
#include "lockstep/trace.h"
#include "train/checkpointing.h"
#include "train/evaluation.h"
#include "train/recorder.h"
#include "train/replica_check.h"
#include "train/run_end.h"
#include "train/schedule.h"
#include "train/skipped_steps.h"

namespace lockstep::train {
namespace {

/// Collective. Repeats an evaluation that a signal interrupted when the run was last stopped, and saves its result.
/// False if a signal has asked a rank to stop, before the first step or during that evaluation.
bool may_start(Session& session, Validation& validation, Checkpointing& checkpointing) {
  const std::int64_t step = session.progress.step;
  const bool repeats_evaluation = validation.was_interrupted();
  const bool is_over = (step >= session.last_step || validation.ends_run()) && !repeats_evaluation;
  if (!is_over && session.world.any(stop_requested())) return false;
  if (!repeats_evaluation) return true;
  if (!validation.run(step)) return false;
  checkpointing.save(step, validation.quality(true));
  return true;
}

class Trainer {
 public:
  Trainer(Session& session, const run::RunLock& lock)
      : s_(session),
        recorder_(session),
        schedule_(session.config.schedule, session.config.optimizer.learning_rate, session.steps_per_epoch,
                  session.config.train.epochs,
                  learning_rate_factor(session.config.optimizer, session.config.train.global_batch)),
        skipped_(session.config.train, session.last_step, session.leader()),
        loader_(session.task->train_set(), session.loader_options()),
        validation_(session, recorder_),
        checkpointing_(session, recorder_, lock) {}

  /// The rank that the others waited for.
  std::optional<run::SlowRank> slow_rank() const { return recorder_.slow_rank(); }

  /// Runs a whole training. Steps are numbered from 0. The result of a step is read one step later, so that the host
  /// does not wait for the device, unless something must be done between two steps.
  int run() {
    const std::int64_t first = s_.progress.step;
    if (!may_start(s_, validation_, checkpointing_)) return end_stopped(s_, checkpointing_, recorder_, first);
    recorder_.restart_clock();
    std::int64_t step = first;
    for (; step < s_.last_step && !validation_.ends_run(); ++step) {
      run_step(step);
      if (step > first) read_result(step - 1, 1);
      if (!pauses_after(step)) continue;
      read_result(step, 0);
      recorder_.pause();
      const bool evaluated = !stopping_ && validation_.is_due_after(step) && evaluate(step + 1);
      if (ends_epoch(step))
        recorder_.epoch(step, schedule_.learning_rate(step), evaluated ? &validation_.sums() : nullptr);
      const std::optional<double> quality = validation_.quality(evaluated);
      // This makes `best` the best of all evaluations, and not only of those after which a checkpoint was due.
      const bool saves = saves_after(step) || (evaluated && checkpointing_.would_be_best(quality));
      if (saves || checks_after(step)) require_equal_replicas(s_.world, s_.replica->hash(), step + 1);
      if (saves) checkpointing_.save(step + 1, quality);
      const bool is_complete = ends_after(step) && (evaluated || !s_.task->validation_set());
      if (stopping_ && !is_complete) return end_stopped(s_, checkpointing_, recorder_, step + 1);
      recorder_.restart_clock();
    }
    skipped_.warn_at_end();
    return end_done(s_, checkpointing_, recorder_, first, step);
  }

 private:
  void run_step(std::int64_t step) {
    const trace::Span span(trace::Kind::step, "step", step + 1);
    const BatchShape shape = s_.shape_of(step);
    const double waited_before = loader_.wait_seconds();
    StepFlags flags{.stop_requests = stop_requested() ? 1.0 : 0.0};
    checkpointing_.write_flags(step, flags);
    recorder_.write_flags(flags);
    const StepScalars scalars = make_step_scalars(
        {.step = step,
         .optimizer_begin = s_.progress.optimizer_begin,
         .epoch = step / s_.steps_per_epoch,
         .nominal_count = s_.task->nominal_count(shape.global_batch),
         .learning_rate = schedule_.learning_rate(step),
         .loss_limit = skipped_.loss_limit(),
         .average_momentum = average_momentum(s_.config.ema, step, schedule_.warmup_steps(), s_.steps_per_epoch)},
        s_.config.optimizer);
    Replica& replica = *s_.replica;
    replica.begin_step(shape, scalars, flags);
    for (int i = 0; i < shape.n_micro_batches; ++i) {
      replica.run(loader_.next());
    }
    clock_[step & 1] = recorder_.lap();
    clock_[step & 1].loader = loader_.usage();
    clock_[step & 1].data_wait_seconds = clock_[step & 1].loader.wait_seconds - waited_before;
  }

  /// Reads, counts and reports the result of a step, once.
  void read_result(std::int64_t step, int steps_ago) {
    if (step <= last_read_) return;
    last_read_ = step;
    const StepResult result = s_.replica->result(steps_ago);
    const double learning_rate = schedule_.learning_rate(step);
    stopping_ = stopping_ || result.flags.stop_requests > 0;
    skipped_.add(step, result, learning_rate);
    recorder_.step(step, result, learning_rate, clock_[step & 1]);
    checkpointing_.read_flags(step, result.flags);
  }

  bool evaluate(std::int64_t steps_done) {
    const bool is_complete = validation_.run(steps_done);
    stopping_ = !is_complete;
    return is_complete;
  }

  bool ends_epoch(std::int64_t step) const { return (step + 1) % s_.steps_per_epoch == 0; }
  bool ends_after(std::int64_t step) const { return step + 1 == s_.last_step || validation_.ends_run(); }
  bool saves_after(std::int64_t step) const { return stopping_ || ends_after(step) || checkpointing_.due_after(step); }
  bool checks_after(std::int64_t step) const {
    return is_multiple(step + 1, s_.config.train.check_replicas_every_steps);
  }
  bool pauses_after(std::int64_t step) const {
    const bool evaluates = !stopping_ && validation_.is_due_after(step);
    return ends_epoch(step) || evaluates || checks_after(step) || saves_after(step);
  }

  Session& s_;
  Recorder recorder_;
  Schedule schedule_;
  SkippedSteps skipped_;
  data::Loader loader_;
  Validation validation_;
  Checkpointing checkpointing_;
  StepClock clock_[2];           // of the last two steps
  std::int64_t last_read_ = -1;  // the last step whose result was read
  bool stopping_ = false;        // a signal asked some rank to stop; the same on all ranks
};

}  // namespace

Outcome train(Session& session, const run::RunLock& lock) {
  Trainer trainer(session, lock);
  const int status = trainer.run();
  return {.status = status, .slow_rank = trainer.slow_rank()};
}

}  // namespace lockstep::train
