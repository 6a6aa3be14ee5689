// A loss is a spike if it is more than z standard deviations above the mean of the last losses. The standard
// deviation is taken as at least 1 % of the mean, so that a loss that hardly changes has no spikes. This is done on the
// host: known losses go in, and the limit becomes part of the next step's scalars. It is not part of checkpoints, so a
// resumed run starts with an empty window.
#pragma once

#include <array>
#include <cstddef>

namespace lockstep::train {

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

}  // namespace lockstep::train
