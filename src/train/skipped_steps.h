// The steps that the device skipped: which losses count as spikes, how many steps may be skipped in a row, and the
// messages about skipped steps and the loss scale.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "lockstep/config.h"
#include "train/replica.h"

namespace lockstep::train {

/// Whether the samples of the step have no weight: there was nothing to learn, and nothing has changed. Such a step
/// does not count as skipped.
inline bool had_no_weight(const StepResult& result) {
  return result.is_applied == 0 && result.sums.weight == 0 && result.sums.loss == 0;
}

/// A loss is a spike if it is more than z standard deviations above the mean of the last losses. The standard deviation
/// is taken as at least 1 % of the mean, so that a loss that hardly changes has no spikes. This is done on the host:
/// known losses go in, and the limit becomes part of the next step's scalars. It is not part of checkpoints, so a
/// resumed run starts with an empty window.
class SpikeLimit {
 public:
  static constexpr std::size_t kWindow = 50;     // losses
  static constexpr std::size_t kMinLosses = 20;  // with fewer, no loss is a spike

  /// z 0: never a spike.
  explicit SpikeLimit(double z) : z_(z) {}
  /// The mean loss of a step that was applied.
  void add(double loss) { losses_[n_++ % kWindow] = loss; }
  /// The greatest loss that is not a spike; infinity while the window is too small.
  float value() const;

 private:
  double z_;
  std::array<double, kWindow> losses_{};
  std::size_t n_ = 0;  // losses that were added
};

class SkippedSteps {
 public:
  /// `logs`: this rank writes the messages.
  SkippedSteps(const Config::Train& config, std::int64_t last_step, bool logs)
      : config_(config), last_step_(last_step), logs_(logs), spikes_(config.spike_z_score) {}

  /// A step with a greater mean loss is skipped.
  float loss_limit() const { return spikes_.value(); }
  /// The result of a step. Throws steps_skipped after more than train.max_skipped_in_a_row. At the last step it throws
  /// if no step has been applied since the run was started or resumed, or if the one before was skipped too and there
  /// is no finite loss: the weights are then useless, and the run must not end as complete.
  void add(std::int64_t step, const StepResult& result, double learning_rate);
  /// Says how many of the last steps were skipped, and how many steps had no weight, if any.
  void warn_at_end() const;

 private:
  void add_skipped(std::int64_t step, const StepResult& result, double learning_rate);

  Config::Train config_;
  std::int64_t last_step_;
  bool logs_;
  SpikeLimit spikes_;
  int n_in_a_row_ = 0;
  std::int64_t n_without_weight_ = 0;
  bool has_applied_ = false;  // since the run was started or resumed
};

}  // namespace lockstep::train
