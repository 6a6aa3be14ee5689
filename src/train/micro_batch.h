// What a micro-batch of training queues, from the gathering of sharded weights to the update of the optimizer.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "graph/step_list.h"
#include "train/step_plan.h"

namespace lockstep::train {

class Replica;

/// The place of a micro-batch in its step.
struct Role {
  int number = 0;
  bool is_last = true;  // it sums gradients over ranks while its backward pass is running, and then updates
};

/// The list of a micro-batch. `replica`: has the memory and the ops; null: the list is only read. It is not bound.
graph::StepList list_of(StepPlan& plan, PlannedGraph& planned, const Role& role, Replica* replica);

/// With train.shard=parameters: gathers the units of weights that the nodes of a graph use. Otherwise it adds nothing.
class UnitGathers {
 public:
  /// `replica` may be null, as for list_of().
  UnitGathers(graph::StepList& list, const StepPlan& plan, const graph::Graph& graph, Replica* replica);
  /// To be called before the entry of the execution order at this position is added.
  void add_before(std::size_t position);
  /// Called with elements of the arena before they are gathered.
  std::function<void(const ElementRange&)> before_gather;

  /// Gathers one unit, and waits.
  static graph::StepList list_of(const StepPlan& plan, std::size_t unit, Replica* replica);

 private:
  UnitGathers(graph::StepList& list, const StepPlan& plan, Replica* replica)
      : list_(list), plan_(plan), replica_(replica) {}
  void start(const UnitUse& use);
  void wait(const UnitUse& use);

  graph::StepList& list_;
  const StepPlan& plan_;
  Replica* replica_;
  std::vector<UnitUse> uses_;
  std::size_t n_started_ = 0, n_waited_ = 0;           // uses
  std::map<std::size_t, std::vector<int>> exchanges_;  // in flight, of each unit
};

/// The elements that an exchange of a list gathers.
struct Gather {
  ElementRange range;
  int exchange = 0;
};

/// With train.shard: starts to gather the weights of a bucket.
Gather add_gather(graph::StepList& list, const StepPlan& plan, const comm::Bucket& bucket, void* weights);
/// Gathers all weights that are sharded, with waits.
graph::StepList gather_list(const StepPlan& plan, void* weights);

}  // namespace lockstep::train
