// The micro-batches that a rank runs in a step, made one gradient and one loss.
//
// With train.accumulate the ops add each micro-batch to the ones before. With train.micro_batches the order must not
// depend on which rank runs which micro-batch, so each micro-batch is summed by the fixed tree (comm/sum_order.h): it
// writes its gradients to a buffer of its own, and sums of subtrees that wait for their other half are kept in
// log2(micro-batches) more of them. What comes out of the last micro-batch lies in the communicator's arena, where the
// same tree goes on over ranks.
#pragma once

#include <memory>
#include <vector>

#include "comm/reducer.h"
#include "train/step_plan.h"

namespace lockstep::train {

class GradientAccumulator {
 public:
  /// `gradients` and `loss`: where the sums end, in the communicator's memory.
  GradientAccumulator(const StepPlan& plan, Backend& backend, float* gradients, LossSums* loss);

  /// Where micro-batch number `micro_batch` of the step leaves its gradients.
  graph::ParameterGradients target(int micro_batch) const;
  /// The loss of the micro-batch lies in `loss`, where its forward pass put it.
  void add_loss(int micro_batch, Stream& stream);
  /// All gradients of a micro-batch are there; not for the last one.
  void add_gradients(int micro_batch, Stream& stream);
  /// Those of the last micro-batch, a bucket at a time.
  void finish(const comm::Bucket& bucket, Stream& stream);

 private:
  struct Buffer {
    float* gradients;
    LossSums* loss;
  };
  /// What one micro-batch is added to, and where the sum goes.
  struct Leaf {
    std::vector<const void*> open_gradients, open_losses;  // the outermost first
    Buffer sum;
  };

  bool is_tree_;
  std::size_t n_elements_;
  Buffer result_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<OrderedSum> sum_gradients_, sum_losses_;
  std::vector<Leaf> leaves_;  // of each micro-batch
};

}  // namespace lockstep::train
