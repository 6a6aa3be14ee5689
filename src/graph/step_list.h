// What a micro-batch queues on its stream, in order, and the one place where it is queued. The list is made before the
// first step and never changes:
//
//   forward conv1 | forward bn1 | ... | backward conv2 | start bucket 1 | backward conv1 | ... | wait bucket 1 | ...
//
// A weight gradient on the second stream (weight_gradient_stream.cpp) begins with a fork and ends with a join. A sum
// over ranks begins with a start, when what it sums is complete on the stream, and ends with a wait.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "lockstep/communicator.h"

namespace lockstep::graph {

enum class Do : std::uint8_t {
  forward,          // of a node
  recompute,        // the forward pass of a node again
  backward,         // of a node
  fork,             // the second stream waits for what is queued so far; index: Graph::forks()
  weight_gradient,  // of that fork, on the second stream
  join,             // the stream waits for the weight gradients up to that fork
  start,            // an exchange
  wait,             // the stream waits for an exchange
  run,              // a task
};

struct Action {
  Do what = Do::run;
  int index = 0;  // of a node, a fork, an exchange or a task
};

struct PlannedExchange {
  Exchange exchange{};
  std::string label;            // for messages
  bool is_timed = false;        // the wait for it is exposed communication
  TensorId copied = kNoTensor;  // a tensor whose values are copied to the slice first
  const void* shard = nullptr;  // of an all-gather: this rank's shard, which is copied to its place in the slice first
};

/// Work besides the nodes of the graph.
struct Task {
  trace::Kind kind = trace::Kind::update;
  std::string name;
  std::function<void(Stream&)> work{};
};

class StepList {
 public:
  /// `graph`: planned; null if the list has no entries of a graph.
  explicit StepList(Graph* graph = nullptr) : graph_(graph) {}
  /// If exchanges are in flight, because an exception ends the step, their events are not destroyed: the communicator
  /// still uses them.
  ~StepList();
  StepList(StepList&&) = default;
  StepList& operator=(StepList&&) = default;

  // Building
  /// The actions that follow belong to this part of the step. `name` is constant.
  void begin_part(trace::Kind kind, const char* name);
  /// The entry of the graph's execution order at this position, with the joins and the sum over ranks that it needs.
  void add_entry(std::size_t position);
  void add_join_of_all();
  int add_start(PlannedExchange exchange);
  void add_wait(int exchange);
  void add_task(Task task);

  const std::vector<Action>& actions() const { return actions_; }
  const std::vector<PlannedExchange>& exchanges() const { return exchanges_; }
  /// One line per action: "  123  start  bucket 1 of 2  28887040 bytes as fp32".
  std::string text() const;

  // Running
  /// Makes the events. The graph, if there is one, is bound. Communicator: null if there are no exchanges.
  void bind(Backend& backend, Communicator* communicator);
  /// Queues everything. Allocates nothing. `observer` may be null.
  void queue(Stream& stream, const ParameterGradients& gradients = {}, Observer* observer = nullptr);
  /// How long the stream of the last queue() did nothing but wait for the exchanges that are timed. Blocks the caller
  /// until these waits are over.
  double exposed_seconds() const;

 private:
  struct InFlight {
    std::unique_ptr<Event> ready, done;
    std::unique_ptr<Event> wait_begin, wait_end;  // if it is timed
    bool is_pending = false;                      // started, and no stream has waited for it
  };
  struct Fork {
    std::unique_ptr<Event> begin, done;
  };
  struct Part {
    std::size_t begin = 0;  // action
    trace::Kind kind = trace::Kind::forward;
    const char* name = nullptr;
  };
  void add(Do what, std::size_t index) { actions_.push_back({what, static_cast<int>(index)}); }
  void add_join(std::size_t n_forks);
  const std::string& name_of(const Action& action) const;
  void queue(std::size_t begin, std::size_t end, Stream& stream, const ParameterGradients& gradients,
             Observer* observer);
  void start(const PlannedExchange& planned, InFlight& events, Stream& stream);
  void wait(InFlight& events, Stream& stream);

  Graph* graph_;
  std::vector<Part> parts_;
  std::vector<Action> actions_;
  std::vector<PlannedExchange> exchanges_;
  std::vector<Task> tasks_;
  std::size_t n_forked_ = 0, n_joined_ = 0;  // while building
  Backend* backend_ = nullptr;
  Communicator* communicator_ = nullptr;
  std::vector<InFlight> in_flight_;  // of each exchange
  std::vector<Fork> forks_;
};

}  // namespace lockstep::graph
