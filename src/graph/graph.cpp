#include "graph/graph.h"

#include <algorithm>

#include "graph/memory_plan.h"
#include "lockstep/error.h"

namespace lockstep::graph {

ExecutionOrder::ExecutionOrder(const std::vector<bool>& has_backward) : n_forward_(has_backward.size()) {
  const int n_nodes = static_cast<int>(has_backward.size());
  for (int node = 0; node < n_nodes; ++node) entries_.push_back({node, Phase::forward});
  for (int node = n_nodes; node-- > 0;)
    if (has_backward[static_cast<std::size_t>(node)]) entries_.push_back({node, Phase::backward});
}

void ExecutionOrder::recompute(const std::vector<int>& nodes, int last) {
  const auto before =
      std::find_if(entries_.begin() + static_cast<std::ptrdiff_t>(n_forward_), entries_.end(),
                   [&](const Entry& entry) { return entry.phase == Phase::backward && entry.node <= last; });
  if (before == entries_.end()) return;
  std::vector<Entry> again;
  for (const int node : nodes) again.push_back({node, Phase::recompute});
  entries_.insert(before, again.begin(), again.end());
}

ActivationId Graph::add_activation(Activation activation) {
  require_possible_activation(activation.name, activation.shape, options_.mode);
  activations_.push_back(std::move(activation));
  return static_cast<ActivationId>(activations_.size()) - 1;
}

void Graph::add(std::unique_ptr<Node> node) {
  for (const ActivationId id : node->outputs()) activation(id).producer = node.get();
  nodes_.push_back(std::move(node));
}

void Graph::recompute(int first, int last) {
  require(0 <= first && first <= last && last < n_nodes(), ErrorCode::internal,
          "recompute: nodes {} to {} are not a range of the {} nodes of the graph", first, last, n_nodes());
  for (const Block& block : recomputed_)
    require(last < block.first || block.last < first, ErrorCode::internal,
            "recompute: the blocks of nodes {} to {} and {} to {} overlap", first, last, block.first, block.last);
  for (int number = first; number <= last; ++number)
    require(node(number).recomputation() != Recomputation::forbidden, ErrorCode::internal,
            "recompute: {} cannot run twice in a step", node(number).name());
  recomputed_.push_back({first, last});
}

void Graph::count_reader(ActivationId id, Node& reader) {
  Activation& a = activation(id);
  ++a.n_readers;
  if (!a.pending || a.owner) return;
  a.owner = &reader;
  for (const ActivationId other : a.pending->reads()) {
    require(!activation(other).pending || activation(other).owner, ErrorCode::internal,
            "{} reads {} before a layer has applied it", a.name, activation(other).name);
    count_reader(other, reader);
  }
}

TensorId Graph::data_of(ActivationId id, Node& node) {
  const Activation& a = activation(id);
  require(a.data != kNoTensor, ErrorCode::internal, "{} reads {}, which no node has stored", node.name(), a.name);
  node.reads(Phase::forward, a.data);
  return a.data;
}

TensorId Graph::make_data(ActivationId id, Node& node) {
  Activation& a = activation(id);
  a.data = memory_.add(a.name, a.size_bytes());
  node.writes(Phase::forward, a.data);
  return a.data;
}

Graph::GradientTarget Graph::gradient_target(ActivationId id, Node& node) {
  Activation& a = activation(id);
  if (!a.needs_gradient) return {};
  const bool is_second = a.gradient != kNoTensor && a.producer->adds_gradients();
  TensorId& target = is_second ? a.added_gradient : a.gradient;
  if (target != kNoTensor) {
    node.updates(Phase::backward, target);
    return {target, GradientMode::accumulate};
  }
  target = memory_.add((is_second ? "added d " : "d ") + a.name, a.size_bytes());
  node.writes(Phase::backward, target);
  return {target, GradientMode::overwrite};
}

TensorId Graph::gradient_of(ActivationId id, Node& node) {
  const Activation& a = activation(id);
  require(a.gradient != kNoTensor, ErrorCode::internal, "{}: no node computes the gradient of its output {}",
          node.name(), a.name);
  node.reads(Phase::backward, a.gradient);
  return a.gradient;
}

TensorId Graph::added_gradient_of(ActivationId id, Node& node) {
  const TensorId added = activation(id).added_gradient;
  node.reads(Phase::backward, added);
  return added;
}

void Graph::choose_layout(ParameterId id, const std::function<std::shared_ptr<const ParameterLayout>()>& choose) {
  if (!parameters_.fixed() && !parameters_[id].layout) parameters_.set_layout(id, choose());
}

std::size_t Graph::add_exchange(std::size_t size_bytes) {
  const std::size_t offset = exchange_bytes_;
  exchange_bytes_ += aligned(size_bytes);
  return offset;
}

std::size_t Graph::add_cache(std::size_t size_bytes) {
  const std::size_t offset = cache_bytes_;
  cache_bytes_ += aligned(size_bytes);
  return offset;
}

// Repeated until nothing changes, since a pending activation may have sources that come later in the list of nodes.
void Graph::find_gradients() {
  const auto need = [&](const std::vector<ActivationId>& ids) {
    return std::ranges::any_of(ids, [&](ActivationId id) { return activation(id).needs_gradient; });
  };
  for (auto& node : nodes_)
    for (const ActivationId id : node->outputs()) activation(id).needs_gradient = false;
  bool has_changed = true;
  while (has_changed) {
    has_changed = false;
    for (auto& node : nodes_) {
      bool is_needed = need(node->inputs());
      for (const ParameterUse* use : node->parameters()) is_needed |= use->exists() && parameters_[use->id()].trainable;
      for (const ActivationId id : node->outputs()) {
        Activation& a = activation(id);
        if (a.needs_gradient || !(is_needed || (a.pending && need(a.pending->gradient_sources())))) continue;
        a.needs_gradient = has_changed = true;
      }
    }
  }
}

/// A node without outputs, such as a loss, is where gradients begin.
bool Graph::has_backward(const Node& node) const {
  if (!training()) return false;
  return node.outputs().empty() ||
         std::ranges::any_of(node.outputs(), [&](ActivationId id) { return activation(id).needs_gradient; });
}

void Graph::list_order() {
  std::vector<bool> with_backward;
  for (const auto& node : nodes_) with_backward.push_back(has_backward(*node));
  order_ = ExecutionOrder(with_backward);
  if (!training()) return;
  for (const Block& block : recomputed_) {
    std::vector<int> repeated;
    for (int number = block.first; number <= block.last; ++number)
      if (node(number).recomputation() == Recomputation::repeat) repeated.push_back(number);
    order_.recompute(repeated, block.last);
  }
}

void Graph::plan(Backend& backend) {
  find_gradients();
  list_order();
  for (Activation& a : activations_) a.layout = backend.activation_layout(a.shape, a.dtype);
  for (auto& node : nodes_)
    for (const ActivationId id : node->inputs()) count_reader(id, *node);
  for (auto& node : nodes_) node->plan(*this, backend);
  for (const Entry& entry : order_.entries())
    if (entry.phase == Phase::backward) node(entry.node).plan_backward(*this);
  check_parameter_types();
  if (training()) plan_parameter_writers();
  choose_forked_nodes();
  plan_op_memory();
  drop_useless_recomputation();
  plan_forks();
  plan_liveness();
}

void Graph::check_parameter_types() const {
  for (const auto& node : nodes_)
    for (const ParameterUse* use : node->parameters())
      require(!use->exists() || use->dtype() == DType::fp32 || use->dtype() == options_.dtype, ErrorCode::internal,
              "{} reads {} in {}, but weights exist in fp32 and {} only", node->name(), parameters_[use->id()].name,
              lockstep::name(use->dtype()), lockstep::name(options_.dtype));
}

std::string Node::describe_ops() const {
  std::string text;
  for (const Op* op : ops())
    if (op) text += (text.empty() ? "" : "; ") + op->describe();
  return text;
}

void Graph::plan_op_memory() {
  for (auto& node : nodes_) {
    OpMemoryRequirements requirements;
    for (const Op* op : node->ops()) {
      if (!op) continue;
      const OpMemoryRequirements of_op = op->memory_requirements();
      requirements.forward_workspace_bytes =
          std::max(requirements.forward_workspace_bytes, of_op.forward_workspace_bytes);
      requirements.backward_workspace_bytes =
          std::max(requirements.backward_workspace_bytes, of_op.backward_workspace_bytes);
      require(requirements.saved_bytes == 0 || of_op.saved_bytes == 0, ErrorCode::internal,
              "two ops of {} keep memory for backward", node->name());
      requirements.saved_bytes += of_op.saved_bytes;
    }
    if (node->is_forked_) {
      const Node::WeightGradient part = node->weight_gradient_part();
      requirements.backward_workspace_bytes = part.rest_workspace_bytes;
      second_workspace_bytes_ = std::max(second_workspace_bytes_, part.workspace_bytes);
    }
    workspace_bytes_ = std::max({workspace_bytes_, requirements.forward_workspace_bytes,
                                 training() ? requirements.backward_workspace_bytes : std::size_t{0}});
    if (!training() || requirements.saved_bytes == 0) continue;
    node->saved_ = memory_.add(node->name() + " saved", requirements.saved_bytes);
    node->writes(Phase::forward, node->saved_);
    if (has_backward(*node)) node->reads(Phase::backward, node->saved_);
  }
}

namespace {

Phase pass_of(Phase phase) { return phase == Phase::recompute ? Phase::forward : phase; }

}  // namespace

/// Nodes at the end of a recomputed block may write only tensors that the next block has already read.
void Graph::drop_useless_recomputation() {
  std::vector<bool> is_read(memory_.tensors().size());  // whether the tensor is read later, before it is written again
  for (std::size_t position = order_.entries().size(); position-- > 0;) {
    const Entry entry = order_.entries()[position];
    const auto touched = [&](const auto& visit) {
      for (const Node::TensorAccess& a : node(entry.node).accesses_)
        if (a.phase == pass_of(entry.phase)) visit(a, static_cast<std::size_t>(a.tensor));
    };
    bool is_useful = entry.phase != Phase::recompute;
    touched([&](const auto& a, std::size_t tensor) { is_useful |= a.access != Access::read && is_read[tensor]; });
    if (!is_useful) {
      order_.erase(position);
      continue;
    }
    touched([&](const auto& a, std::size_t tensor) { is_read[tensor] = is_read[tensor] && a.access != Access::write; });
    touched([&](const auto& a, std::size_t tensor) { is_read[tensor] = is_read[tensor] || a.access != Access::write; });
  }
}

void Graph::plan_liveness() {
  // A step of decoding may be collected. The inputs of each of its nodes then live one node longer.
  const bool overlaps_nodes = cache_bytes_ > 0 && options_.batch <= PendingWork::kFewRows;
  for (std::size_t i = 0; i < order_.entries().size(); ++i) {
    const Entry& entry = order_.entries()[i];
    const auto report = [&](bool is_write) {
      for (const Node::TensorAccess& a : node(entry.node).accesses_)
        if (a.phase == pass_of(entry.phase) && (a.access == Access::write) == is_write)
          memory_.access(a.tensor, static_cast<int>(i), a.access);
    };
    report(false);
    for (const Fork& fork : forks_)
      if (fork.end == i + 1)
        for (const TensorId tensor : fork.reads) memory_.access(tensor, static_cast<int>(i), Access::read);
    report(true);
    if (!overlaps_nodes || i + 1 == order_.entries().size()) continue;
    for (const Node::TensorAccess& a : node(entry.node).accesses_)
      memory_.access(a.tensor, static_cast<int>(i) + 1, Access::read);
  }
  memory_.place();
}

bool Graph::is_read_in_fp32(ParameterId id) const {
  if (options_.dtype == DType::fp32) return false;
  return std::ranges::any_of(nodes_, [&](const std::unique_ptr<Node>& node) {
    return std::ranges::any_of(node->parameters(),
                               [&](const ParameterUse* use) { return use->id() == id && use->dtype() == DType::fp32; });
  });
}

void Graph::plan_parameter_writers() {
  finished_.resize(nodes_.size());
  std::vector<ParameterUse*> last(parameters_.parameters().size(), nullptr);
  const auto trained_by = [&](int number) {
    std::vector<ParameterUse*> uses = node(number).parameters();
    std::erase_if(uses, [&](const ParameterUse* use) { return !use->exists() || !parameters_[use->id()].trainable; });
    return uses;
  };
  for (const Entry& entry : order_.entries()) {
    if (entry.phase != Phase::backward) continue;
    for (ParameterUse* use : trained_by(entry.node)) {
      ParameterUse*& before = last[static_cast<std::size_t>(use->id())];
      use->is_first_writer_ = before == nullptr;
      if (before) before->is_last_writer_ = false;
      before = use;
    }
  }
  std::vector<ParameterId> order;  // the order in which backward finishes the gradients
  for (const Entry& entry : order_.entries()) {
    if (entry.phase != Phase::backward) continue;
    for (const ParameterUse* use : trained_by(entry.node))
      if (use->is_last_writer_) finished_[static_cast<std::size_t>(entry.node)].push_back(use->id());
    const auto& finished = finished_[static_cast<std::size_t>(entry.node)];
    order.insert(order.end(), finished.begin(), finished.end());
  }
  if (!parameters_.fixed())
    parameters_.fix_order(
        order, options_.dtype == DType::fp32 ? std::function<bool(ParameterId)>()
                                             : [&](ParameterId id) { return is_read_in_fp32(id); });
  else
    require(order == parameters_.finished(), ErrorCode::internal,
            "two graphs of one model finish their gradients in different orders");
  plan_low_precision_gradients(last);
}

/// `writers` contains the last writer of each parameter.
void Graph::plan_low_precision_gradients(const std::vector<ParameterUse*>& writers) {
  for (auto& node : nodes_)
    for (ParameterUse* use : node->parameters())
      use->gives_narrow_ = use->gives_narrow_ && use->is_first_writer_ && use->is_last_writer_;
  bool continues = false;
  for (const ParameterId id : parameters_.order()) {
    const ParameterUse* use = writers[static_cast<std::size_t>(id)];
    const Parameter& parameter = parameters_[id];
    const bool is_narrow = use != nullptr && use->gives_narrow_;
    if (is_narrow && !continues) low_precision_gradients_.push_back({parameter.begin, 0});
    if (is_narrow) {
      ElementRange& range = low_precision_gradients_.back();
      range.n_elements = parameter.begin + parameter.n_elements - range.begin;
    }
    continues = is_narrow;
  }
}

void Graph::bind(const Bindings& bindings) {
  bindings_ = bindings;
  for (auto& node : nodes_) {
    for (const ParameterUse* use : node->parameters())
      require(!use->exists() || use->dtype() == DType::fp32 ||
                  (use->dtype() == bindings.compute_dtype && bindings.compute_weights != nullptr),
              ErrorCode::internal, "{} reads {} in {}, and there are no weights in that type", node->name(),
              parameters_[use->id()].name, lockstep::name(use->dtype()));
    node->bind(*this, bindings_);
  }
  second_bindings_ = bindings;
  second_bindings_.workspace = bindings.second_workspace;
  require(forks_.empty() || bindings.second_stream != nullptr, ErrorCode::internal,
          "there is no second stream for {} weight gradients", forks_.size());
}

void Graph::forward(Stream& stream) {
  const Run pass = run(stream, {});
  for (const auto& node : nodes_) {
    const trace::Span span(trace::Kind::forward, node->name());
    node->forward(pass);
  }
}

namespace {

Flops flops_of(const Node& node) {
  const auto* counted = dynamic_cast<const CountsFlops*>(&node);
  return counted ? counted->flops() : Flops{};
}

}  // namespace

double flops_of(const Graph& graph) {
  double flops = 0;
  for (const auto& node : graph.nodes()) flops += flops_of(*node).total();
  return flops;
}

bool flops_are_exact(const Graph& graph) {
  return std::ranges::none_of(graph.nodes(), [](const auto& node) { return flops_of(*node).are_upper_bound; });
}

}  // namespace lockstep::graph
