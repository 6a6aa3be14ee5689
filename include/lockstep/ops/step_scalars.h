// The values that change from step to step. They are one struct in the backend's memory, and never kernel arguments, so
// that a step can be captured once. Also the sums that a step reports.
#pragma once

#include <cstdint>
#include <limits>

namespace lockstep {

struct StepScalars {
  float learning_rate = 0;
  double nominal_count = 1;    // weight of the step (LossSums) if every sample counts 1: what loss_weight assumes
  float loss_weight = 0;       // 1 / nominal_count: gradients are then summed over ranks
  float clip_coefficient = 1;  // written by ClipNorm on the device, read by the optimizer; includes 1 / loss scale
  float loss_limit = std::numeric_limits<float>::infinity();  // a mean loss above it is a spike: the step is skipped
  std::uint32_t is_applied = 1;  // 0: the step is skipped; written by ClipNorm on the device, read by all updates
  float adam_correction1 = 1;    // 1 / (1 - beta1^t)
  float adam_correction2 = 1;    // 1 / (1 - beta2^t)
  float average_momentum = 0;    // of the moving average of the weights; 0: this step does not enter it
  std::uint32_t epoch = 0;
  std::uint32_t step = 0;
};

/// What a step reports, summed over ranks by the trainer. It is in memory of Communicator::allocate().
struct LossSums {
  double loss = 0;     // sum over samples
  double correct = 0;  // samples whose largest logit is the label's; in a tie, the first is the largest
  double count = 0;    // samples that were counted (label >= 0)
  double weight = 0;   // sum of their class weights, which divides the loss; without weights, 1 for each sample

  LossSums& operator+=(const LossSums& more) {
    loss += more.loss;
    correct += more.correct;
    count += more.count;
    weight += more.weight;
    return *this;
  }
};

}  // namespace lockstep
