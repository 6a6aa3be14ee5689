// The exponential moving averages of the weights and of the running statistics (ema.decay), in fp32. A rank keeps those
// of the weights that it updates: with train.shard, its pieces and what every rank has, as a state of the optimizer.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/backend.h"
#include "lockstep/ops/moving_average.h"
#include "train/step_plan.h"

namespace lockstep::train {

class WeightAverages {
 public:
  /// The plan has averages.
  WeightAverages(const StepPlan& plan, Backend& backend);

  /// The layout is that of a stored state (Shard), with the statistics at its end.
  float* data() const { return static_cast<float*>(memory_->data()); }

  // `masters`: the arena of fp32 masters of this rank.
  /// To be called in a step after its update, with StepScalars::average_momentum.
  void update(const float* masters, const StepScalars* scalars, Stream& stream);
  /// Makes the averages copies of the weights.
  void start_from(const float* masters, Stream& stream);
  /// The weights and their averages change places, as many as fit into `scratch` at a time.
  void swap_with(float* masters, std::span<float> scratch, Stream& stream);

 private:
  struct Range {
    std::size_t master = 0, stored = 0, n_elements = 0;
    std::unique_ptr<MovingAverage> op;
  };
  Backend& backend_;
  std::unique_ptr<Memory> memory_;
  std::vector<Range> ranges_;
};

}  // namespace lockstep::train
