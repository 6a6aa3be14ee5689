// A node of the graph: one planned op with its tensors and parameters.
//
// A node declares what it touches: its inputs and outputs (constructor), the tensors that it reads and writes in each
// phase (reads(), writes(), updates() while planning), and the parameters it uses. From these the graph derives
// liveness, the memory plan, and which node is the first and the last to write the gradient of a parameter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graph/gradient_layout.h"
#include "graph/memory_plan.h"
#include "graph/parameters.h"
#include "lockstep/backend.h"
#include "lockstep/communicator.h"
#include "lockstep/dtype.h"
#include "lockstep/loss_scale.h"
#include "lockstep/ops/step_scalars.h"

namespace lockstep::graph {

// The order in which the nodes of a step run: an explicit list of (node, phase).
//
// By default every node runs forward, first to last, and then every node that has a backward pass runs backward, last
// to first. Recomputing a block is an edit of this list: the block's nodes run forward once more directly before the
// backward pass of its last node. Tensors that the block has made then need no memory in between, because
// MemoryPlan computes liveness from the positions in this list. The ops and their order of additions stay the same, so
// the results stay bitwise identical (DESIGN, decision 18).
/// `recompute` runs a node's forward pass again, between forward and backward.
enum class Phase : std::uint8_t { forward, recompute, backward };

/// `node` runs in `phase`.
struct Entry {
  int node = 0;  // its number in Graph::nodes()
  Phase phase = Phase::forward;
  bool operator==(const Entry&) const = default;
};

class ExecutionOrder {
 public:
  ExecutionOrder() = default;
  /// All nodes forward; then, for those that have a backward pass, backward. Inference: none has one.
  explicit ExecutionOrder(const std::vector<bool>& has_backward);

  /// Runs `nodes`, in ascending order, forward again before the backward pass of the last node up to `last` that has
  /// one. Without such a node nothing changes.
  void recompute(const std::vector<int>& nodes, int last);
  void erase(std::size_t position) { entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(position)); }

  const std::vector<Entry>& entries() const { return entries_; }
  /// The entries before this position are the forward pass.
  std::size_t n_forward() const { return n_forward_; }

 private:
  std::vector<Entry> entries_;
  std::size_t n_forward_ = 0;
};

// An operation that must still be applied to a raw tensor to get an activation.
//
// Such an activation is *pending*. The first node that consumes it, its owner, applies it as part of its own op and, if
// there are other consumers, stores the result for them. In backward the owner comes last, adds the gradients of the
// others, and propagates the gradient. The graph itself only knows the owner; the node and the Pending know the rest
// (layers/pending_normalization.h).
using ActivationId = int;
inline constexpr ActivationId kNoActivation = -1;

class Pending {
 public:
  virtual ~Pending() = default;
  /// The activations, besides the raw tensor, that the owner reads when it applies this.
  virtual std::vector<ActivationId> reads() const = 0;
  /// The activations, besides the raw tensor, through which a gradient may have to pass. Some may come from nodes that
  /// were added later.
  virtual std::vector<ActivationId> gradient_sources() const { return reads(); }
};

class Graph;

/// The memory of the step. One allocation each; `exchange` belongs to the communicator.
struct Bindings {
  const float* master(std::size_t element) const { return parameters + (element - first_parameter); }

  /// The fp32 masters. Elements of the arena before `first_parameter` are not stored here; another rank may have them.
  const float* parameters = nullptr;
  std::size_t first_parameter = 0;
  /// The parameters rounded to compute_dtype, from element `first_weight` of the arena on.
  const void* compute_weights = nullptr;
  std::size_t first_weight = 0;
  DType compute_dtype = DType::fp32;       // fp32: there are no rounded weights
  const std::byte* nf4_weights = nullptr;  // matrices in NF4: Parameter::nf4_begin
  /// With train.shard=parameters, of each parameter: where its values are while nodes use it, in the type in which they
  /// read it; null for one that every rank has. Null: every rank has all of them.
  const std::byte* const* gathered = nullptr;
  void* low_precision_gradients = nullptr;  // in compute_dtype, where ops write some: Graph::low_precision_gradients()
  std::byte* exchange = nullptr;            // small sums between ranks
  std::byte* activations = nullptr;
  std::byte* cache = nullptr;  // keys and values of earlier tokens (Graph::add_cache); outlives the step
  void* workspace = nullptr;
  Stream* second_stream = nullptr;  // of weight gradients, with a workspace of its own: Graph::forks()
  void* second_workspace = nullptr;
  StepScalars* scalars = nullptr;
  const LossScale* loss_scale = nullptr;  // null: gradients are not scaled
  Communicator* communicator = nullptr;
};

/// Where a micro-batch writes the gradients of parameters and its batch statistics: an arena with the parameters'
/// offsets.
struct ParameterGradients {
  GradientArena arena{};
  GradientMode mode = GradientMode::overwrite;
};

/// One micro-batch that is running.
struct Run {
  const Bindings& at;
  const MemoryPlan& plan;
  const ParameterTable& parameters;
  Stream& stream;
  ParameterGradients gradients;

  template <typename T = void>
  T* tensor(TensorId id) const {
    return id == kNoTensor ? nullptr : reinterpret_cast<T*>(at.activations + plan.info(id).offset);
  }
  /// Mean and variance of a norm, (2, C): the running ones, and where those of this micro-batch go.
  const float* running_statistic(int id) const { return at.master(parameters.statistic(id).begin); }
  float* batch_statistic(int id) const { return gradients.arena.at(parameters.statistic(id).begin).as<float>(); }
  /// Null if there is no constant.
  const float* constant(ConstantId id) const {
    return id == kNoConstant ? nullptr : at.master(parameters.constant(id).begin);
  }
};

/// How one node uses one parameter. Only this class knows the positions of a parameter and its gradient.
///
/// A node reads either the fp32 master or, if its op takes weights in the compute type, the rounded weight.
///
/// Several nodes may use the same parameter. The first of them to run backward overwrites the gradient (or adds to it,
/// when the micro-batch accumulates), the others add to it, and the last one finishes it.
class ParameterUse {
 public:
  /// Without a parameter (a bias that does not exist) all pointers are null.
  explicit ParameterUse(ParameterId id = kNoParameter) : id_(id) {}

  ParameterId id() const { return id_; }
  bool exists() const { return id_ != kNoParameter; }
  /// Known after Graph::plan.
  bool is_first_writer() const { return is_first_writer_; }
  /// To be called in Node::plan: weights() then gives the values in this type, which is fp32 or the compute type of the
  /// graph.
  void read_as(DType dtype) { dtype_ = dtype; }
  DType dtype() const { return dtype_; }
  /// To be called in Node::plan if the op can overwrite the gradient in the compute type. It is then widened to fp32
  /// and added together with those of other parameters, and typed_gradient() has that type.
  void can_give_low_precision_gradient() { gives_narrow_ = true; }
  const void* weights(const Run& run) const {
    if (!exists()) return nullptr;
    if (dtype_ == DType::fp32) return master(run);
    if (const std::byte* values = gathered(run)) return values;
    return static_cast<const std::byte*>(run.at.compute_weights) +
           (run.parameters[id_].begin - run.at.first_weight) * size_bytes(dtype_);
  }
  /// For a parameter in NF4, instead of weights().
  const std::byte* nf4_weights(const Run& run) const {
    const std::byte* const values = gathered(run);
    return values ? values : run.at.nf4_weights + run.parameters[id_].nf4_begin;
  }
  const float* master(const Run& run) const {
    if (!exists()) return nullptr;
    const std::byte* const values = gathered(run);
    return values ? reinterpret_cast<const float*>(values) : run.at.master(run.parameters[id_].begin);
  }
  /// Null where the parameter is frozen. For ops whose gradients are always fp32.
  float* gradient(const Run& run) const { return typed_gradient(run).as<float>(); }
  TypedPointer typed_gradient(const Run& run) const {
    if (!is_trained(run)) return {};
    if (!gives_narrow_) return run.gradients.arena.at(run.parameters[id_].begin);
    const std::size_t offset = run.parameters[id_].begin * size_bytes(dtype_);
    return {static_cast<std::byte*>(run.at.low_precision_gradients) + offset, dtype_};
  }
  GradientMode mode(const Run& run) const {
    if (!is_trained(run)) return GradientMode::skip;
    return is_first_writer_ ? run.gradients.mode : GradientMode::accumulate;
  }

 private:
  friend class Graph;
  const std::byte* gathered(const Run& run) const {
    return run.at.gathered ? run.at.gathered[static_cast<std::size_t>(id_)] : nullptr;
  }
  bool is_trained(const Run& run) const { return exists() && run.parameters[id_].trainable; }

  ParameterId id_;
  DType dtype_ = DType::fp32;
  bool is_first_writer_ = true, is_last_writer_ = true;  // of the gradient; set by Graph::plan
  bool gives_narrow_ = false;                            // false after Graph::plan if there are several writers
};

/// A small sum over ranks in the middle of a step, such as that of the statistics of a synchronised norm. It is one
/// entry of the static schedule of collectives. `local` is copied to exchange memory, and not changed.
struct SumOverRanks {
  std::string label;
  TensorId local = kNoTensor;  // n doubles
  std::size_t n = 0, offset = 0;
  /// The sum, in exchange memory.
  const double* sum(const Run& run) const { return reinterpret_cast<const double*>(run.at.exchange + offset); }
};

/// What recomputing a block does with one of its nodes.
enum class Recomputation : std::uint8_t {
  repeat,    // forward() runs again; it computes the same bits and has no effect besides the tensors that it writes
  keep,      // forward() does not run again; what it wrote stays in memory until backward
  forbidden  // the node cannot be part of a recomputed block
};

class Node {
 public:
  Node(std::string name, std::vector<ActivationId> inputs, std::vector<ActivationId> outputs)
      : name_(std::move(name)), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  virtual ~Node() = default;

  /// Makes its op and the tensors of the forward pass.
  virtual void plan(Graph& graph, Backend& backend) = 0;
  /// Called in reverse order: creates the gradients of its inputs; those of its outputs exist. Not called if no output
  /// needs a gradient.
  virtual void plan_backward(Graph&) {}
  /// Called when the arenas are known.
  virtual void bind(const Graph&, const Bindings&) {}
  /// A sum over ranks that the node reads when it runs in a phase, or null.
  virtual const SumOverRanks* sum_over_ranks(Phase) const { return nullptr; }
  virtual void forward(const Run& run) = 0;
  virtual void backward(const Run&) {}
  /// The part of backward() that can run concurrently with the rest of it, and with the backward pass of other nodes.
  struct WeightGradient {
    const ParameterUse* parameter = nullptr;  // whose gradient it writes, and nothing else; null: there is no such part
    std::vector<TensorId> reads{};            // besides what the op has saved
    std::size_t workspace_bytes = 0;          // of this part
    std::size_t rest_workspace_bytes = 0;     // of backward() without it
  };
  virtual WeightGradient weight_gradient_part() const { return {}; }
  /// That part alone; backward() then leaves it out (is_forked()).
  virtual void weight_gradient(const Run&) {}
  /// Whether backward() adds two gradients of an output (Graph::added_gradient_of) while it reads them.
  virtual bool adds_gradients() const { return false; }
  /// Those that it has planned; null: not needed.
  virtual std::vector<const Op*> ops() const { return {}; }
  /// "kernel of the first op; kernel of the second one". Empty without ops.
  std::string describe_ops() const;
  /// The parameters that it uses, in the order in which backward() completes their gradients.
  virtual std::vector<ParameterUse*> parameters() { return {}; }
  /// Those whose gradients backward() writes: also those of a node whose work it does, too.
  virtual std::vector<ParameterUse*> written_parameters() { return parameters(); }
  /// Whether backward() reads the values of its parameters.
  virtual bool backward_reads_weights() const { return true; }
  virtual Recomputation recomputation() const { return Recomputation::repeat; }

  const std::string& name() const { return name_; }
  const std::vector<ActivationId>& inputs() const { return inputs_; }
  const std::vector<ActivationId>& outputs() const { return outputs_; }

  /// Phase forward or backward. Without a tensor (kNoTensor) they do nothing.
  void reads(Phase phase, TensorId tensor) { access(phase, tensor, Access::read); }
  void writes(Phase phase, TensorId tensor) { access(phase, tensor, Access::write); }
  void updates(Phase phase, TensorId tensor) { access(phase, tensor, Access::update); }

 protected:
  /// Known after Graph::plan: the graph calls weight_gradient() on the second stream.
  bool is_forked() const { return is_forked_; }
  OpMemory memory(const Run& run) const { return {run.at.workspace, run.tensor(saved_)}; }

 private:
  friend class Graph;
  struct TensorAccess {
    Phase phase = Phase::forward;
    TensorId tensor = kNoTensor;
    Access access = Access::read;
  };
  void access(Phase phase, TensorId tensor, Access access) {
    if (tensor != kNoTensor) accesses_.push_back({phase, tensor, access});
  }

  std::string name_;
  std::vector<ActivationId> inputs_, outputs_;
  std::vector<TensorAccess> accesses_;
  TensorId saved_ = kNoTensor;
  bool is_forked_ = false;
};

}  // namespace lockstep::graph
