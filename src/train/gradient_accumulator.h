// The sum of the gradients and losses of the micro-batches that a rank runs in a step.
//
// With train.accumulate, the ops add each micro-batch to the ones before it. With train.micro_batches, the order of the
// sum must not depend on which rank runs which micro-batch, so a fixed tree is used (comm/sum.h). At most
// floor(log2(micro-batches)) buffers keep the sums of subtrees that wait for their other half. A micro-batch that
// begins such a sum writes its gradients there; every other one writes them to the communicator's memory, and the open
// sums are added. The result of the last micro-batch stays there, and the same tree continues over ranks.
//   With train.shard=gradients, the sums over ranks of each micro-batch are what is added, by exchanges in rounds or by
// keep_sum(). Here, only losses are added: those of this rank one after another, for its report. In a tree,
// ranks exchange the losses of all micro-batches, and every rank adds them.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/ops/ordered_sum.h"
#include "lockstep/ops/step_scalars.h"
#include "train/step_plan.h"

namespace lockstep::train {

class GradientAccumulator {
 public:
  /// `gradients` and `loss`: where the sums go, in the communicator's memory.
  /// `losses`: those of all micro-batches (StepPlan::n_losses). `local`: where that of this rank is kept. Both with
  /// train.shard=gradients.
  GradientAccumulator(const StepPlan& plan, Backend& backend, Stream& stream, const graph::GradientArena& gradients,
                      LossSums* loss, LossSums* losses, LossSums* local);

  /// Where micro-batch number `micro_batch` of the step writes its gradients.
  graph::ParameterGradients target(int micro_batch) const;
  /// To be called after the forward pass, which leaves the loss of the micro-batch in `loss`.
  void add_loss(int micro_batch, Stream& stream);
  /// Of the elements of the arena that the backward pass has completed.
  void add_gradients(int micro_batch, ElementRange range, Stream& stream);
  /// The losses of all micro-batches, which ranks have exchanged, become that of the step.
  void sum_losses(Stream& stream);
  /// With train.shard=gradients: the sum over ranks of a bucket is added to the one that is kept, or replaces it.
  void keep_sum(std::size_t bucket, bool is_first, Stream& stream);
  /// Where the sum of an element's gradient is after the last micro-batch and its exchanges, if this rank has it.
  TypedPointer sum_at(std::size_t element) const;
  /// The same for an update: Optimizer::Apply::gradients.
  const void* gradients_of(const OptimizerDescription& update) const;

 private:
  struct Buffer {
    std::byte* gradients;
    LossSums* loss;
  };
  /// The sums that one micro-batch is added to, and where the result goes.
  struct Leaf {
    std::vector<const void*> open_losses;                    // the outermost first
    std::array<std::vector<const void*>, 2> open_gradients;  // the same for each part of the layout
    Buffer sum;
  };

  /// target = open[0] + (open[1] + ... (open[n-1] + loss))
  void add(const LossSums* loss, std::span<const void* const> open, LossSums* target, Stream& stream);

  const StepPlan& plan_;
  Backend& backend_;
  bool is_tree_;
  LossSums* losses_;
  std::vector<int> loss_merges_;  // the order of their sum
  LossSums* local_;
  graph::GradientLayout layout_;
  Buffer result_;
  std::unique_ptr<Memory> memory_;  // of partial sums; with train.shard=gradients, of all that are kept
  std::array<std::unique_ptr<OrderedSum>, 2> sum_gradients_;  // of the parts
  std::unique_ptr<OrderedSum> sum_losses_;
  std::vector<Leaf> leaves_;  // of each micro-batch
};

}  // namespace lockstep::train
