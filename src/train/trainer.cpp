#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/clock.h"
#include "base/stop_signal.h"
#include "checkpoint/safetensors.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "lockstep/trace.h"
#include "train/checkpointing.h"
#include "train/recorder.h"
#include "train/replica_check.h"
#include "train/schedule.h"
#include "train/spike_limit.h"

namespace lockstep::train {

namespace {

data::LoaderOptions loader_options(const Session& session) {
  const Config& config = session.config;
  const BatchShape& batch = session.plan->batch();
  return {.global_batch = config.train.global_batch,
          .capacity = batch.largest_micro_batch(),
          .n_micro_batches = batch.n_micro_batches,
          .rank = batch.first_shard[static_cast<std::size_t>(batch.rank)],
          .size = batch.n_shards(),
          .n_shards = batch.shards_of(batch.rank),
          .seed = config.run.seed,
          .shuffle = config.data.shuffle,
          .drop_last = config.data.drop_last,
          .readers = config.data.readers,
          .prefetch = config.data.prefetch,
          .first_step = session.progress.step,
          .last_step = session.last_step,
          .backend = session.backend.get()};
}

class Trainer {
 public:
  Trainer(Session& session, const RunLock& lock)
      : s_(session),
        recorder_(session),
        schedule_(session.config.schedule, session.config.optimizer.learning_rate, session.steps_per_epoch,
                  session.config.train.epochs),
        spike_limit_(session.config.train.spike_z_score),
        loader_(session.train_set, loader_options(session)),
        checkpointing_(session, recorder_, lock) {}

  /// The whole of training. Steps are numbered from 0; `step` is the one being run.
  int run() {
    const std::int64_t first = s_.progress.step;
    const bool owes_evaluation =
        first > 0 && first <= s_.last_step && evaluates_after(first - 1) && !s_.progress.is_measured;
    const bool is_over = first >= s_.last_step && !owes_evaluation;
    if (!is_over && s_.world.any(stop_requested())) return stop(first);  // told while it started: nothing is new
    if (owes_evaluation) {  // it was told to stop before, or in, the evaluation of the step that it continues from
      if (!evaluate_now(first)) return stop(first);
      checkpointing_.save(first, quality(true));
      recorder_.restart_clock();
    }
    for (std::int64_t step = first; step < s_.last_step; ++step) {
      run_step(step);
      // The loss is read one step late, so that a device need not be waited for.
      if (step > first) account(step - 1, 1);
      const bool epoch_ends = (step + 1) % s_.steps_per_epoch == 0, run_ends = step + 1 == s_.last_step;
      if (!epoch_ends && !run_ends && !evaluates_after(step) && !checks_after(step)) continue;
      account(step, 0);
      const bool evaluated = evaluates_after(step) && evaluate_now(step + 1);
      if (epoch_ends) recorder_.epoch(step, learning_rate(step), evaluated ? &validation_ : nullptr);
      if (checks_after(step)) require_equal_replicas(s_.world, s_.replica->hash(), step + 1);
      if (saves_after(step)) checkpointing_.save(step + 1, quality(evaluated));
      const bool is_complete = run_ends && (evaluated || !s_.validation_set);
      if (stopping_ && !is_complete) return stop(step + 1);
      recorder_.restart_clock();
    }
    finish();
    return kExitDone;
  }

 private:
  double learning_rate(std::int64_t step) const { return schedule_.learning_rate(step); }

  void run_step(std::int64_t step) {
    const trace::Span span(trace::Kind::step, "step", step + 1);
    const Config::Optimizer& o = s_.config.optimizer;
    const BatchShape shape = s_.shape_of(step);
    const double t = static_cast<double>(step + 1), waited = loader_.wait_seconds();
    Replica& replica = *s_.replica;
    StepFlags flags{.stop_requests = stop_requested() ? 1.0 : 0.0};
    checkpointing_.write_flags(step, flags);
    replica.begin_step({.learning_rate = static_cast<float>(learning_rate(step)),
                        .loss_weight = static_cast<float>(1.0 / static_cast<double>(shape.global_batch)),
                        .loss_limit = spike_limit_.value(),
                        .adam_correction1 = static_cast<float>(1.0 / (1.0 - std::pow(o.beta1, t))),
                        .adam_correction2 = static_cast<float>(1.0 / (1.0 - std::pow(o.beta2, t))),
                        .epoch = static_cast<std::uint32_t>(step / s_.steps_per_epoch),
                        .step = static_cast<std::uint32_t>(step)},
                       flags);
    const int last = shape.n_micro_batches - 1;
    for (int micro_batch = 0; micro_batch < last; ++micro_batch)
      replica.run_micro_batch(loader_.next(), micro_batch, shape.global_micro_batch_size(micro_batch));
    replica.finish_step(loader_.next(), last, shape.global_micro_batch_size(last));
    clock_[step & 1] = recorder_.lap();
    clock_[step & 1].data_wait_seconds = loader_.wait_seconds() - waited;
  }

  /// Counts and reports a step that was run, once.
  void account(std::int64_t step, int steps_ago) {
    if (step <= accounted_) return;
    accounted_ = step;
    const StepResult result = s_.replica->result(steps_ago);
    stopping_ = stopping_ || result.flags.stop_requests > 0;
    if (result.is_applied) {
      skipped_in_a_row_ = 0;
      spike_limit_.add(result.sums.loss / result.sums.samples);
    } else if (!result.only_overflowed()) {
      note_skipped(step, result);
    }
    note_loss_scale(step, result);
    recorder_.step(step, result, learning_rate(step), clock_[step & 1]);
    checkpointing_.read_flags(step, result.flags);
  }

  /// The device has skipped it, on all ranks alike.
  void note_skipped(std::int64_t step, const StepResult& result) {
    const int limit = s_.config.train.max_skipped_in_a_row;
    const std::string what =
        fmt::format("step {} was skipped: loss {:.4f}, gradient norm {:.4f}, learning rate {:g}", step + 1,
                    result.sums.loss / result.sums.samples, result.gradient_norm, learning_rate(step));
    ++skipped_in_a_row_;
    require(skipped_in_a_row_ <= limit, ErrorCode::steps_skipped,
            "{}; it is the {}. in a row, and train.max_skipped_in_a_row is {}", what, skipped_in_a_row_, limit);
    if (s_.leader()) log::warning("{}; {} in a row", what, skipped_in_a_row_);
  }

  /// A scale that is searched for skips steps, above all the first ones: that is its way, and counts as no failure.
  void note_loss_scale(std::int64_t step, const StepResult& result) const {
    const float before = result.loss_scale.scale, after = result.next_loss_scale.scale;
    if (after == before || !s_.leader()) return;
    log::info("step {} {}: the loss scale goes from {:g} to {:g}", step + 1,
              result.is_applied ? "was applied" : "was skipped, since its gradients overflowed", before, after);
  }

  bool evaluates_after(std::int64_t step) const {
    const Config::Evaluation& e = s_.config.evaluation;
    return s_.validation_set && !stopping_ && s_.is_due(step + 1, e.every_steps, e.every_epochs);
  }
  bool saves_after(std::int64_t step) const { return stopping_ || checkpointing_.due_after(step); }
  bool checks_after(std::int64_t step) const {
    return is_multiple(step + 1, s_.config.train.check_replicas_every_steps) || saves_after(step);
  }

  bool evaluate_now(std::int64_t steps_done) {
    const trace::Span span(trace::Kind::evaluation, "evaluation after step", steps_done);
    recorder_.restart_clock();
    const Clock::time_point begin = Clock::now();
    const std::optional<LossSums> sums = evaluate(s_, *s_.validation_set, "evaluation", stop_requested);
    stopping_ = !sums;
    if (stopping_) {
      if (s_.leader()) log::warning("told to stop: the evaluation after step {} was given up", steps_done);
      return false;
    }
    validation_ = *sums;
    recorder_.evaluation(steps_done, validation_, seconds_since(begin));
    return true;
  }

  /// Greater is better: validation accuracy, if it was just measured; without validation minus the training loss.
  std::optional<double> quality(bool evaluated) const {
    if (s_.validation_set && !evaluated) return std::nullopt;
    const LossSums& sums = s_.validation_set ? validation_ : recorder_.epoch_sums();
    if (sums.samples <= 0) return std::nullopt;
    return s_.validation_set ? sums.correct / sums.samples : -sums.loss / sums.samples;
  }

  /// All ranks have agreed, and what was trained is saved: the same command continues here.
  int stop(std::int64_t steps_done) {
    checkpointing_.finish();
    if (s_.leader()) {
      if (steps_done > 0)
        log::info("stopped by a signal after step {}: the same command continues", steps_done);
      else
        log::info("stopped by a signal before the first step: the same command begins");
      s_.run.write_status("stopped");
    }
    recorder_.finish("stopped", steps_done);
    s_.world.barrier();
    return kExitStopped;
  }

  void finish() {
    checkpointing_.finish();
    if (s_.leader()) {
      checkpoint::write_safetensors(s_.run.file("model.safetensors"), s_.replica->named_tensors(s_.last_step),
                                    {{"format", "pt"}});
      s_.run.write_status("done");
    }
    recorder_.finish("done", s_.last_step);
    s_.world.barrier();
  }

  Session& s_;
  Recorder recorder_;
  Schedule schedule_;
  SpikeLimit spike_limit_;
  data::Loader loader_;
  Checkpointing checkpointing_;
  LossSums validation_;
  StepClock clock_[2];
  std::int64_t accounted_ = -1;
  int skipped_in_a_row_ = 0;
  bool stopping_ = false;  // a rank was told to stop: on all ranks alike
};

}  // namespace

int train(Session& session, const RunLock& lock) { return Trainer(session, lock).run(); }

}  // namespace lockstep::train
