// The step as an ordered list of planned ops.
//
// 1. Models build a Graph out of layers: each adds a Node and gets activations back. No memory, no ops yet.
// 2. plan(): consumers are counted, layouts chosen, every node makes its op, gradients are wired in reverse order,
//    liveness is known, tensors are placed. The step is static from here on (DESIGN, decision 2).
// 3. bind() gives the arenas; forward() and backward() run the ops.
//
// An activation is either *plain* (a tensor in memory) or *pending*: a raw tensor with a batch norm, and perhaps a
// residual and ReLU, still to be applied (op.h). The first consumer of a pending activation, its owner, applies it; if
// there are others the owner stores the result for them. In backward the owner comes last, adds what the others left,
// and takes the gradient through ReLU and the norm's reductions. So each unit is one op, fused as far as a backend can.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/memory_plan.h"
#include "graph/parameters.h"
#include "lockstep/backend.h"
#include "lockstep/communicator.h"
#include "lockstep/trace.h"

namespace lockstep::graph {

using ActivationId = int;
inline constexpr ActivationId kNoActivation = -1;

enum class Mode : std::uint8_t { train, inference };

/// The tensors of one batch norm that its neighbours read and write.
struct NormTensors {
  TensorId statistics = kNoTensor;           // (2, C) fp64, by the producer of the raw activation
  TensorId scale_bias = kNoTensor;           // (2, C)
  TensorId mean_inverse_stddev = kNoTensor;  // (2, C)
  TensorId sums = kNoTensor;                 // (2, C) fp64, by the owner in backward
  ActivationId applied_in = kNoActivation;   // the pending activation it is part of
};

struct Pending {
  ActivationId raw = kNoActivation;
  NormTensors* norm = nullptr;
  bool relu = false;
  ActivationId residual = kNoActivation;
  NormTensors* residual_norm = nullptr;  // the residual is raw, with a norm of its own
};

class Node;

struct Activation {
  std::string name;
  Shape shape;
  DType dtype = DType::fp32;
  Layout layout = Layout::nhwc;
  bool needs_gradient = true;
  bool wants_statistics = false;  // its producer gives the sums for a batch norm, into `statistics`
  TensorId statistics = kNoTensor;
  std::optional<Pending> pending{};

  // Planning
  TensorId data = kNoTensor;  // plain: the tensor; pending: stored result, if anyone but the owner reads it
  Node* owner = nullptr;      // pending: the first consumer
  int n_readers = 0;          // consumers, and pending activations whose residual it is
  TensorId gradient = kNoTensor;

  std::size_t size_bytes() const { return static_cast<std::size_t>(shape.n_elements()) * lockstep::size_bytes(dtype); }
};

struct GraphOptions {
  Mode mode = Mode::train;
  DType dtype = DType::fp32;      // of activations; the head behind the last pooling computes in fp32
  bool tf32 = false;              // fp32 may be rounded to tf32 inside of multiplications
  std::int64_t batch = 0;         // samples of this rank in one piece
  std::int64_t layout_batch = 0;  // parameter layouts are chosen for this batch, alike on all ranks
  std::int64_t global_rows = 0;   // samples of all ranks in one piece (synchronised batch norm)
  int micro_batches = 1;          // of all ranks a step: batch statistics are averaged over them
  bool synchronize_batch_norm = false;
  float batch_norm_epsilon = 1e-5f;
};

/// Where the step's memory lies. One allocation each; `exchange` is the communicator's.
struct Bindings {
  float* parameters = nullptr;
  std::byte* exchange = nullptr;  // small sums between ranks
  std::byte* activations = nullptr;
  void* workspace = nullptr;
  StepScalars* scalars = nullptr;
  const LossScale* loss_scale = nullptr;  // null: gradients are not scaled
  Communicator* communicator = nullptr;
};

/// Where a micro-batch leaves the gradients of parameters and its batch statistics: an arena with the parameters'
/// places.
struct ParameterGradients {
  float* arena = nullptr;
  GradientMode mode = GradientMode::overwrite;
};

/// One micro-batch being run.
struct Run {
  const Bindings& at;
  const MemoryPlan& plan;
  Stream& stream;
  ParameterGradients gradients;

  template <typename T = void>
  T* tensor(TensorId id) const {
    return id == kNoTensor ? nullptr : reinterpret_cast<T*>(at.activations + plan.info(id).offset);
  }
};

class Graph;

/// Is told of each piece of work around its being given to the stream.
class Observer {
 public:
  virtual ~Observer() = default;
  /// `name` lives as long as the graph.
  virtual void begin(trace::Kind kind, const std::string& name) = 0;
  virtual void end() = 0;
};

/// Gives `work` to the stream, under a span of the trace, and of the observer where there is one.
template <typename Work>
void observed(Observer* observer, trace::Kind kind, const std::string& name, const Work& work) {
  const trace::Span span(kind, name);
  if (observer) observer->begin(kind, name);
  work();
  if (observer) observer->end();
}

class Node {
 public:
  explicit Node(std::string name) : name_(std::move(name)) {}
  virtual ~Node() = default;

  /// Registers what it reads (Graph::read).
  virtual void register_reads(Graph& graph) = 0;
  /// Makes its op and the tensors of the forward pass.
  virtual void plan(Graph& graph, Backend& backend) = 0;
  /// In reverse order: makes the gradients of its inputs; those of its outputs exist.
  virtual void plan_backward(Graph&) {}
  /// The arenas are known: takes the places of its parameters, makes events of the communicator.
  virtual void bind(const Graph&, const Bindings&) {}
  virtual void forward(const Run& run) = 0;
  virtual void backward(const Run&) {}
  virtual const Op* op() const { return nullptr; }
  /// Parameters whose gradients backward() completes, in that order.
  virtual std::vector<ParameterId> parameters() const { return {}; }

  const std::string& name() const { return name_; }
  int forward_moment() const { return forward_moment_; }
  int backward_moment() const { return backward_moment_; }
  OpMemory memory(const Run& run) const { return {run.at.workspace, run.tensor(saved_)}; }

 private:
  friend class Graph;
  std::string name_;
  int forward_moment_ = 0, backward_moment_ = 0;
  TensorId saved_ = kNoTensor;
};

class Graph {
 public:
  Graph(const GraphOptions& options, ParameterTable& parameters) : options_(options), parameters_(parameters) {}

  // Building
  const GraphOptions& options() const { return options_; }
  bool training() const { return options_.mode == Mode::train; }
  ParameterTable& parameters() { return parameters_; }
  const ParameterTable& parameters() const { return parameters_; }
  ActivationId add_activation(Activation activation);
  Activation& activation(ActivationId id) { return activations_[static_cast<std::size_t>(id)]; }
  NormTensors* add_norm();
  template <typename N, typename... Args>
  N& add_node(Args&&... args) {
    nodes_.push_back(std::make_unique<N>(std::forward<Args>(args)...));
    return static_cast<N&>(*nodes_.back());
  }

  // Planning; used by nodes
  void plan(Backend& backend);
  MemoryPlan& memory() { return memory_; }
  const MemoryPlan& memory() const { return memory_; }
  void read(ActivationId id, Node& reader);
  /// The tensor holding a plain or stored activation, used by `node` in forward.
  TensorId data_of(ActivationId id, const Node& node);
  /// The tensor that `node` writes the raw output `id` to.
  TensorId make_data(ActivationId id, const Node& node);
  /// Where backward of `node` writes the gradient of a plain input: overwritten if new, else added to.
  struct GradientTarget {
    TensorId tensor = kNoTensor;
    GradientMode mode = GradientMode::skip;
  };
  GradientTarget gradient_target(ActivationId id, const Node& node);
  /// The gradient of `node`'s output, used by it in backward; its consumers made it.
  TensorId gradient_of(ActivationId id, const Node& node);
  /// A parameter's layout: the first plan chooses it with `choose(batch)`.
  void choose_layout(ParameterId id, const std::function<std::shared_ptr<const ParameterLayout>()>& choose);
  /// Bytes in exchange memory for a sum over ranks; the offset. The same on every rank.
  std::size_t add_exchange(std::size_t size_bytes);

  std::size_t workspace_bytes() const { return workspace_bytes_; }
  std::size_t exchange_bytes() const { return exchange_bytes_; }
  const std::vector<std::unique_ptr<Node>>& nodes() const { return nodes_; }

  // Running
  /// Null: nobody.
  void set_observer(Observer* observer) { observer_ = observer; }
  void bind(const Bindings& bindings);
  const Bindings& bindings() const { return bindings_; }
  template <typename T = void>
  T* tensor(TensorId id) const {
    return reinterpret_cast<T*>(bindings_.activations + memory_.info(id).offset);
  }
  void forward(Stream& stream, const ParameterGradients& gradients = {});
  /// `done(parameter)` after each parameter whose gradient is complete.
  void backward(Stream& stream, const ParameterGradients& gradients, const std::function<void(ParameterId)>& done);

 private:
  GraphOptions options_;
  ParameterTable& parameters_;
  std::vector<Activation> activations_;
  std::vector<std::unique_ptr<NormTensors>> norms_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::vector<ParameterId>> finished_;  // by each node's backward
  MemoryPlan memory_;
  std::size_t workspace_bytes_ = 0, exchange_bytes_ = 0;
  Observer* observer_ = nullptr;
  Bindings bindings_;
};

}  // namespace lockstep::graph
