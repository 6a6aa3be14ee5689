#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "checkpoint/safetensors.h"
#include "lockstep/error.h"
#include "train/checkpointing.h"
#include "train/recorder.h"
#include "train/replica_check.h"
#include "train/schedule.h"

namespace lockstep::train {

namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

data::LoaderOptions loader_options(const Session& session) {
  const Config& config = session.config;
  const BatchShape& batch = session.plan->batch();
  return {.global_batch = config.train.global_batch,
          .capacity = batch.largest_piece(),
          .pieces = batch.pieces,
          .rank = batch.first_share[static_cast<std::size_t>(batch.rank)],
          .size = batch.n_shares(),
          .n_shares = batch.shares_of(batch.rank),
          .seed = config.run.seed,
          .shuffle = config.data.shuffle,
          .drop_last = config.data.drop_last,
          .readers = config.data.readers,
          .prefetch = config.data.prefetch,
          .first_step = session.progress.step,
          .last_step = session.last_step};
}

class Trainer {
 public:
  Trainer(Session& session, const RunLock& lock)
      : s_(session),
        recorder_(session),
        schedule_(session.config.schedule, session.config.optimizer.learning_rate, session.steps_per_epoch,
                  session.config.train.epochs),
        loader_(session.train_set, loader_options(session)),
        checkpointing_(session, recorder_, lock) {}

  /// The whole of training. Steps are numbered from 0; `step` is the one being run.
  int run() {
    const std::int64_t first = s_.progress.step;
    for (std::int64_t step = first; step < s_.last_step; ++step) {
      run_step(step);
      // The loss is read one step late, so that a device need not be waited for.
      if (step > first) account(step - 1, 1);
      const bool epoch_ends = (step + 1) % s_.steps_per_epoch == 0, run_ends = step + 1 == s_.last_step;
      if (!epoch_ends && !run_ends && !evaluates_after(step) && !checkpointing_.due_after(step) && !checks_after(step))
        continue;
      account(step, 0);
      if (checks_after(step)) require_equal_replicas(s_.world, s_.replica->hash(), step + 1);
      const bool evaluated = evaluates_after(step) && evaluate_now(step + 1);
      if (epoch_ends) recorder_.epoch(step, learning_rate(step), evaluated ? &validation_ : nullptr);
      if (checkpointing_.due_after(step)) checkpointing_.save(step + 1, quality(evaluated));
      recorder_.restart_clock();
    }
    finish();
    return kExitDone;
  }

 private:
  double learning_rate(std::int64_t step) const { return schedule_.learning_rate(step); }

  void run_step(std::int64_t step) {
    const Config::Optimizer& o = s_.config.optimizer;
    const BatchShape shape = s_.shape_of(step);
    const double t = static_cast<double>(step + 1), waited = loader_.wait_seconds();
    Replica& replica = *s_.replica;
    StepFlags flags;
    checkpointing_.say(step, flags);
    replica.begin_step({.learning_rate = static_cast<float>(learning_rate(step)),
                        .loss_weight = static_cast<float>(1.0 / static_cast<double>(shape.global_batch)),
                        .adam_correction1 = static_cast<float>(1.0 / (1.0 - std::pow(o.beta1, t))),
                        .adam_correction2 = static_cast<float>(1.0 / (1.0 - std::pow(o.beta2, t))),
                        .epoch = static_cast<std::uint32_t>(step / s_.steps_per_epoch),
                        .step = static_cast<std::uint32_t>(step)},
                       flags);
    for (int piece = 0; piece < shape.pieces; ++piece)
      replica.run_piece(loader_.next(), piece, shape.piece_of_all(piece), piece + 1 == shape.pieces);
    replica.reduce();
    replica.update(recorder_.logs(step));
    clock_[step & 1] = recorder_.lap();
    clock_[step & 1].data_wait_seconds = loader_.wait_seconds() - waited;
  }

  /// Counts and reports a step that was run, once.
  void account(std::int64_t step, int steps_ago) {
    if (step <= accounted_) return;
    accounted_ = step;
    const StepResult result = s_.replica->result(steps_ago);
    require(std::isfinite(result.sums.loss), ErrorCode::not_finite, "the loss of step {} is {} (learning rate {:g})",
            step + 1, result.sums.loss, learning_rate(step));
    recorder_.step(step, result, learning_rate(step), clock_[step & 1]);
    checkpointing_.hear(step, result.flags);
  }

  static bool divides(std::int64_t every, std::int64_t count) { return every > 0 && count % every == 0; }

  bool evaluates_after(std::int64_t step) const {
    const Config::Evaluation& e = s_.config.evaluation;
    if (!s_.validation_set) return false;
    return step + 1 == s_.last_step || divides(e.every_steps, step + 1) ||
           divides(e.every_epochs * s_.steps_per_epoch, step + 1);
  }
  bool checks_after(std::int64_t step) const {
    return divides(s_.config.train.check_replicas_every_steps, step + 1) || checkpointing_.due_after(step);
  }

  bool evaluate_now(std::int64_t steps_done) {
    recorder_.restart_clock();
    const double begin = now_seconds();
    validation_ = evaluate(s_, *s_.validation_set, "evaluation");
    recorder_.evaluation(steps_done, validation_, now_seconds() - begin);
    return true;
  }

  /// Greater is better: validation accuracy, if it was just measured; without validation minus the training loss.
  std::optional<double> quality(bool evaluated) const {
    if (s_.validation_set && !evaluated) return std::nullopt;
    const LossSums& sums = s_.validation_set ? validation_ : recorder_.epoch_sums();
    if (sums.samples <= 0) return std::nullopt;
    return s_.validation_set ? sums.correct / sums.samples : -sums.loss / sums.samples;
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
  data::Loader loader_;
  Checkpointing checkpointing_;
  LossSums validation_;
  StepClock clock_[2];
  std::int64_t accounted_ = -1;
};

}  // namespace

int train(Session& session, const RunLock& lock) { return Trainer(session, lock).run(); }

}  // namespace lockstep::train
