#include "train/skipped_steps.h"

#include "lockstep/error.h"
#include "lockstep/log.h"
#include "tasks/task.h"

namespace lockstep::train {

void SkippedSteps::add(std::int64_t step, const StepResult& result, double learning_rate) {
  const float before = result.loss_scale.scale, after = result.next_loss_scale.scale;
  if (result.is_applied) {
    n_in_a_row_ = 0;
    spikes_.add(tasks::loss_measure().of(result.sums));
  } else if (!result.only_overflowed()) {  // a step that only adjusted the loss scale is not a failure
    add_skipped(step, result, learning_rate);
  }
  if (after == before || !logs_) return;
  log::info("step {} {}: the loss scale changes from {:g} to {:g}", step + 1,
            result.is_applied ? "was applied" : "was skipped, since its gradients overflowed", before, after);
}

void SkippedSteps::add_skipped(std::int64_t step, const StepResult& result, double learning_rate) {
  const std::string what =
      fmt::format("step {} was skipped: loss {:.4f}, gradient norm {:.4f}, learning rate {:g}", step + 1,
                  tasks::loss_measure().of(result.sums), result.gradient_norm, learning_rate);
  ++n_in_a_row_;
  require(n_in_a_row_ <= config_.max_skipped_in_a_row, ErrorCode::steps_skipped,
          "{}; these are {} skipped steps in a row, and train.max_skipped_in_a_row is {}", what, n_in_a_row_,
          config_.max_skipped_in_a_row);
  if (logs_) log::warning("{}; {} skipped in a row", what, n_in_a_row_);
}

}  // namespace lockstep::train
