// What model.recompute saves and costs, for `lockstep plan`: counted from the shapes of planned graphs, and with the
// speed of the device if it is here.
#pragma once

#include <cstddef>
#include <optional>

#include "graph/graph.h"
#include "train/step_plan.h"

namespace lockstep::train {

/// The recomputation in one micro-batch.
struct RecomputedWork {
  int n_nodes = 0;         // that run forward twice
  double flops = 0;        // of matrix products: multiplications and additions
  double bytes = 0;        // that the nodes read and write: activations and weights
  double other_bytes = 0;  // of these, those of nodes other than matrix products: norms, activation functions
};
RecomputedWork recomputed_work(const graph::Graph& graph);

/// What recomputation saves and costs for one micro-batch of the largest size. The memory is that of training without
/// evaluations.
struct RecomputationReport {
  std::size_t activation_bytes = 0;       // with recomputation
  std::size_t kept_activation_bytes = 0;  // if everything were kept
  RecomputedWork added;
  double model_flops = 0;         // of the micro-batch, without what is recomputed (graph/graph.h)
  std::optional<double> seconds;  // added, as estimated from measured rates; no value: the device is not here

  /// Negative if the outputs of the recomputed nodes were not what took the memory.
  double saved_bytes() const {
    return static_cast<double>(kept_activation_bytes) - static_cast<double>(activation_bytes);
  }
};
/// `kept`: the same step with model.recompute=none. `device`: measures for a quarter of a second how fast it multiplies
/// matrices, and how fast it reads and writes memory; null: it is not here.
RecomputationReport report_recomputation(StepPlan& plan, const StepPlan& kept, Backend* device);

}  // namespace lockstep::train
