// The step as an ordered list of planned ops.
//
// 1. Models build a Graph out of layers: each layer adds a Node and returns activations. There is no memory yet, and
//    there are no ops.
// 2. plan(): the execution order is listed, consumers are counted, layouts are chosen, every node makes its op,
//    gradients are wired in reverse order, and tensors are placed. From then on the step is static (DESIGN, decision
//    2).
// 3. bind() sets the arenas. A StepList (step_list.h) queues the ops of a step.
//
// An activation is either *plain* (a tensor in memory) or *pending* (Pending).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/memory_plan.h"
#include "graph/node.h"
#include "graph/parameters.h"
#include "lockstep/backend.h"
#include "lockstep/element_range.h"
#include "lockstep/launches.h"
#include "lockstep/trace.h"

namespace lockstep::graph {

enum class Mode : std::uint8_t { train, inference };

struct Activation {
  std::string name;
  Shape shape;
  DType dtype = DType::fp32;
  Layout layout = Layout::nhwc;
  std::shared_ptr<Pending> pending{};  // null: plain

  // Planning
  Node* producer = nullptr;    // the node that it is an output of
  bool needs_gradient = true;  // false: it does not depend on a trainable parameter
  TensorId data = kNoTensor;   // plain: the tensor; pending: stored result, if a node other than the owner reads it
  Node* owner = nullptr;       // pending: the first consumer
  int n_readers = 0;           // consumers, and pending activations that read it
  TensorId gradient = kNoTensor;
  TensorId added_gradient = kNoTensor;  // to be added to `gradient` by a producer that can (Node::adds_gradients)

  std::size_t size_bytes() const { return static_cast<std::size_t>(shape.n_elements()) * lockstep::size_bytes(dtype); }
};

struct GraphOptions {
  Mode mode = Mode::train;
  DType dtype = DType::fp32;            // of activations, where a layer does not choose another
  DType gradient_dtype = DType::fp32;   // of parameters that ops read in `dtype`: fp32 or `dtype`
  bool tf32 = false;                    // fp32 may be rounded to tf32 inside multiplications
  bool fp8 = false;                     // the linear layers that allow it multiply in fp8
  std::int64_t batch = 0;               // samples of this rank in one micro-batch
  std::int64_t layout_batch = 0;        // parameter layouts are chosen for this batch, the same on all ranks
  bool weight_gradient_stream = false;  // weight gradients run on a second stream, where their ops can
};

/// The phase of launches that compute again what was not kept, in the backward pass.
inline constexpr std::string_view kRecompute = "recompute";

/// Called around each group of ops that is queued on the stream.
class Observer {
 public:
  virtual ~Observer() = default;
  /// `name` must live as long as the graph.
  virtual void begin(trace::Kind kind, const std::string& name) = 0;
  virtual void end() = 0;
};

/// Runs `work`, which queues ops on the stream, inside a span of the trace and of the observer, if there is one.
/// `phase`: that of its launches, if it is not that of the span.
template <typename Work>
void observed(Observer* observer, trace::Kind kind, const std::string& name, const Work& work,
              std::string_view phase = {}) {
  const trace::Span span(kind, name);
  if (LaunchList* const list = LaunchList::current()) list->begin_part(phase.empty() ? trace::name(kind) : phase, name);
  if (observer) observer->begin(kind, name);
  work();
  if (observer) observer->end();
}

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
  const Activation& activation(ActivationId id) const { return activations_[static_cast<std::size_t>(id)]; }
  template <typename N, typename... Args>
  N& add_node(Args&&... args) {
    auto node = std::make_unique<N>(std::forward<Args>(args)...);
    N& added = *node;
    add(std::move(node));
    return added;
  }
  int n_nodes() const { return static_cast<int>(nodes_.size()); }
  /// The outputs of nodes [first, last] are not kept for backward but recomputed: their forward pass runs once more
  /// before the backward pass of `last`. Blocks must not overlap. Must be called before plan().
  void recompute(int first, int last);

  // Planning; used by nodes
  void plan(Backend& backend);
  MemoryPlan& memory() { return memory_; }
  const MemoryPlan& memory() const { return memory_; }
  /// The tensor that holds a plain or stored activation; `node` reads it in forward.
  TensorId data_of(ActivationId id, Node& node);
  /// The tensor that `node` writes its output `id` to.
  TensorId make_data(ActivationId id, Node& node);
  /// Where backward of `node` writes the gradient of a plain input. The first gradient overwrites the tensor, and later
  /// ones are added to it. If the input's producer adds gradients, the first two have a tensor each.
  struct GradientTarget {
    TensorId tensor = kNoTensor;
    GradientMode mode = GradientMode::skip;
  };
  GradientTarget gradient_target(ActivationId id, Node& node);
  /// The gradient of an output of `node`, which its backward reads and its consumers have computed.
  TensorId gradient_of(ActivationId id, Node& node);
  /// The second gradient that `node`, which adds gradients, must add to gradient_of(); kNoTensor if there is none.
  TensorId added_gradient_of(ActivationId id, Node& node);
  /// A parameter's layout: the first plan chooses it with `choose()`.
  void choose_layout(ParameterId id, const std::function<std::shared_ptr<const ParameterLayout>()>& choose);
  /// Reserves bytes in exchange memory for a sum over ranks. Returns the offset, which is the same on every rank.
  std::size_t add_exchange(std::size_t size_bytes);
  /// Reserves bytes in the cache, which keeps its content from one execution to the next. Returns the offset. Graphs
  /// that reserve the same sizes in the same order can share one cache.
  std::size_t add_cache(std::size_t size_bytes);

  std::size_t workspace_bytes() const { return workspace_bytes_; }
  /// The workspace for weight gradients on the second stream.
  std::size_t second_workspace_bytes() const { return second_workspace_bytes_; }
  /// A weight gradient on the second stream, which begins with the entry `begin` of the execution order. The other
  /// stream waits for it before the entry `end`, so the tensors that it reads live until then.
  struct Fork {
    std::size_t begin = 0, end = 0;
    std::vector<TensorId> reads{};
  };
  /// In the order of the backward pass.
  const std::vector<Fork>& forks() const { return forks_; }
  std::size_t exchange_bytes() const { return exchange_bytes_; }
  std::size_t cache_bytes() const { return cache_bytes_; }
  /// For a graph that computes in 16 bits: whether a node reads the fp32 master of a parameter.
  bool is_read_in_fp32(ParameterId id) const;
  const std::vector<std::unique_ptr<Node>>& nodes() const { return nodes_; }
  const ExecutionOrder& order() const { return order_; }
  /// The parts of the gradient arena whose values backward leaves in Bindings::low_precision_gradients, at the same
  /// elements: ascending, as few as possible.
  const std::vector<ElementRange>& low_precision_gradients() const { return low_precision_gradients_; }

  // Running
  void bind(const Bindings& bindings);
  const Bindings& bindings() const { return bindings_; }
  template <typename T = void>
  T* tensor(TensorId id) const {
    return reinterpret_cast<T*>(bindings_.activations + memory_.info(id).offset);
  }
  /// The forward pass of a graph for inference. Steps of training are lists (step_list.h).
  void forward(Stream& stream);
  /// What nodes get when they run on the stream, or on the second one.
  Run run(Stream& stream, const ParameterGradients& gradients) const {
    return {bindings_, memory_, parameters_, stream, gradients};
  }
  Run run_on_second_stream(const ParameterGradients& gradients) const {
    return {second_bindings_, memory_, parameters_, *bindings_.second_stream, gradients};
  }
  Node& forked_node(std::size_t fork) const { return node(order_.entries()[forks_[fork].begin].node); }
  /// The parameters whose gradients the backward pass of a node completes, in this order.
  const std::vector<ParameterId>& finished_by(int node) const { return finished_[static_cast<std::size_t>(node)]; }

 private:
  struct Block {
    int first = 0, last = 0;
  };
  void add(std::unique_ptr<Node> node);
  void count_reader(ActivationId id, Node& reader);
  bool has_backward(const Node& node) const;
  void find_gradients();
  void list_order();
  void check_parameter_types() const;
  void plan_op_memory();
  void choose_forked_nodes();
  void plan_forks();
  void drop_useless_recomputation();
  void plan_liveness();
  void plan_parameter_writers();
  void plan_low_precision_gradients(const std::vector<ParameterUse*>& writers);
  Node& node(int number) const { return *nodes_[static_cast<std::size_t>(number)]; }

  GraphOptions options_;
  ParameterTable& parameters_;
  std::vector<Activation> activations_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Block> recomputed_;
  ExecutionOrder order_;
  std::vector<std::vector<ParameterId>> finished_;  // by each node's backward
  std::vector<ElementRange> low_precision_gradients_;
  MemoryPlan memory_;
  std::size_t workspace_bytes_ = 0, second_workspace_bytes_ = 0, exchange_bytes_ = 0;
  std::size_t cache_bytes_ = 0;
  std::vector<Fork> forks_;
  Bindings bindings_, second_bindings_;  // those of the second stream have its workspace
};

// The floating-point operations that the mathematics of a model needs: multiplications and additions of matrix
// products, convolutions and attention, forward and backward. What is recomputed to save memory is not counted, and
// neither is what grows only with the number of activations (norms, activation functions, the optimizer). Source: the
// count of model FLOPs in Chowdhery et al., "PaLM", 2022, appendix B.

/// The operations of one micro-batch, in the phases for which the graph is planned.
struct Flops {
  double forward = 0;
  double passes = 1;  // multiples of `forward`: one for the forward pass, and one for each gradient of an operand
  /// Some algorithms need fewer, such as Winograd's for a convolution.
  bool are_upper_bound = false;
  double total() const { return forward * passes; }
};

/// Implemented by the nodes that multiply.
class CountsFlops {
 public:
  virtual ~CountsFlops() = default;
  /// Known after plan().
  virtual Flops flops() const = 0;
};

/// How often a product of an input and a weight is computed, its gradients included: each takes as many operations as
/// the forward pass.
inline double product_passes(bool training, bool input_gradient, bool weight_gradient) {
  return 1.0 + (training && input_gradient ? 1 : 0) + (training && weight_gradient ? 1 : 0);
}

/// The sum over the nodes of a planned graph.
double flops_of(const Graph& graph);
/// Whether that sum is what the graph computes, whatever its algorithms are. Only then is their rate a utilisation.
bool flops_are_exact(const Graph& graph);

}  // namespace lockstep::graph
