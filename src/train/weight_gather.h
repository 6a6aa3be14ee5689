// The all-gather of the weights that ranks have updated shard by shard (train.shard). The buckets are gathered in the
// reverse order of the backward pass, which is about that of the forward pass, so that the first layers run while the
// weights of later ones are on their way.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/parameters.h"
#include "lockstep/communicator.h"
#include "train/step_plan.h"

namespace lockstep::train {

class WeightGather {
 public:
  /// Gathers those elements of an arena that are sharded. It is in the communicator's memory.
  WeightGather(const StepPlan& plan, Backend& backend, Communicator& communicator, void* arena, DType dtype,
               const std::string& what);
  /// Like the reducer, it leaks the events of exchanges that an exception has left in flight.
  ~WeightGather();
  WeightGather(const WeightGather&) = delete;
  WeightGather& operator=(const WeightGather&) = delete;

  /// Collective. The work queued on `stream` so far has written this rank's shards.
  void start(Stream& stream);
  /// Makes `stream` wait until elements [begin, begin + n_elements) have been gathered.
  void wait_for(std::size_t begin, std::size_t n_elements, Stream& stream);
  void wait_for_all(Stream& stream) { wait_for(0, end_, stream); }

 private:
  struct Part {
    std::size_t begin = 0, end = 0;  // elements of the arena
    Exchange exchange;
    std::unique_ptr<Event> done;
    std::string label;
    bool is_pending = false;  // start() was called, and no stream has waited for it
  };
  Communicator& communicator_;
  std::unique_ptr<Event> ready_;
  std::vector<Part> parts_;  // in the order of their exchanges
  std::size_t end_ = 0;
};

}  // namespace lockstep::train
