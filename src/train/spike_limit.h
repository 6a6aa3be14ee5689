// What counts as a spike of the loss: more than z standard deviations above the mean of the last losses. The standard
// deviation is taken as at least 1 % of the mean, so that a loss that hardly moves makes no spikes. Host only: losses
// that are known go in, the limit goes into the step's scalars. Not in checkpoints: a resumed run begins with an empty
// window.
#pragma once

#include <array>
#include <cstddef>

namespace lockstep::train {

class SpikeLimit {
 public:
  static constexpr std::size_t kWindow = 50;  // losses
  static constexpr std::size_t kFewest = 20;  // before that no loss is a spike

  /// z 0: never a spike.
  explicit SpikeLimit(double z) : z_(z) {}
  /// The mean loss of a step that was applied.
  void add(double loss) { losses_[n_++ % kWindow] = loss; }
  /// The greatest loss that is no spike; infinity as long as none is.
  float value() const;

 private:
  double z_;
  std::array<double, kWindow> losses_{};
  std::size_t n_ = 0;  // that were added
};

}  // namespace lockstep::train
