#include "train/skipped_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/numbers.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "tasks/task.h"

namespace lockstep::train {

float SpikeLimit::value() const {
  if (z_ == 0 || n_ < kMinLosses) return std::numeric_limits<float>::infinity();
  const std::span<const double> known(losses_.data(), std::min(n_, kWindow));
  const auto count = static_cast<double>(known.size());
  double mean = 0, variance = 0;
  for (const double loss : known) mean += loss / count;
  for (const double loss : known) variance += (loss - mean) * (loss - mean) / count;
  return static_cast<float>(mean + z_ * std::max(std::sqrt(variance), 0.01 * std::abs(mean)));
}

void SkippedSteps::add(std::int64_t step, const StepResult& result, double learning_rate) {
  const float before = result.loss_scale.scale, after = result.next_loss_scale.scale;
  if (result.is_applied) {
    n_in_a_row_ = 0;
    has_applied_ = true;
    spikes_.add(tasks::loss_measure().of(result.sums));
  } else if (had_no_weight(result)) {
    ++n_without_weight_;
  } else if (!result.only_overflowed()) {  // a step that only adjusted the loss scale is not a failure
    add_skipped(step, result, learning_rate);
  }
  if (after == before || !logs_) return;
  log::info("step {} {}: the loss scale changes from {:g} to {:g}", step + 1,
            result.is_applied ? "was applied" : "was skipped, since its gradients overflowed", before, after);
}

void SkippedSteps::add_skipped(std::int64_t step, const StepResult& result, double learning_rate) {
  const std::string what = fmt::format("step {} was skipped: loss {}, gradient norm {}, learning rate {:g}", step + 1,
                                       fixed_text(tasks::loss_measure().of(result.sums), 4),
                                       fixed_text(result.gradient_norm, 4), learning_rate);
  ++n_in_a_row_;
  require(n_in_a_row_ <= config_.max_skipped_in_a_row, ErrorCode::steps_skipped,
          "{}; these are {} skipped steps in a row, and train.max_skipped_in_a_row is {}", what, n_in_a_row_,
          config_.max_skipped_in_a_row);
  const bool is_last = step + 1 >= last_step_, has_no_loss = !std::isfinite(result.sums.loss);
  require(!is_last || (has_applied_ && (n_in_a_row_ == 1 || !has_no_loss)), ErrorCode::steps_skipped,
          "{}; it was the last step, and {}", what,
          has_applied_ ? fmt::format("the {} before it were skipped too", n_in_a_row_ - 1)
                       : "none since the run was started or resumed has changed the weights");
  if (logs_) log::warning("{}; {} skipped in a row", what, n_in_a_row_);
}

void SkippedSteps::warn_at_end() const {
  if (logs_ && n_in_a_row_ > 0)
    log::warning("the last {} skipped: the weights are those from before",
                 n_in_a_row_ == 1 ? "step was" : fmt::format("{} steps were", n_in_a_row_));
  if (logs_ && n_without_weight_ > 0)
    log::info("{} changed nothing, since none of {} samples has a weight",
              n_without_weight_ == 1 ? "1 step" : fmt::format("{} steps", n_without_weight_),
              n_without_weight_ == 1 ? "its" : "their");
}

}  // namespace lockstep::train
