#include "graph/graph.h"

#include <algorithm>

#include "lockstep/error.h"
#include "lockstep/trace.h"

namespace lockstep::graph {

ActivationId Graph::add_activation(Activation activation) {
  activations_.push_back(std::move(activation));
  return static_cast<ActivationId>(activations_.size()) - 1;
}

NormTensors* Graph::add_norm() {
  norms_.push_back(std::make_unique<NormTensors>());
  return norms_.back().get();
}

void Graph::read(ActivationId id, Node& reader) {
  Activation& a = activation(id);
  ++a.n_readers;
  if (!a.pending || a.owner) return;
  a.owner = &reader;
  // Applying it reads its residual; a residual with a norm of its own is raw and read by nobody else.
  if (a.pending->residual != kNoActivation && !a.pending->residual_norm) {
    require(!activation(a.pending->residual).pending || activation(a.pending->residual).owner, ErrorCode::internal,
            "{}: its residual {} is read before a layer applied it", a.name, activation(a.pending->residual).name);
    read(a.pending->residual, reader);
  }
}

TensorId Graph::data_of(ActivationId id, const Node& node) {
  const Activation& a = activation(id);
  require(a.data != kNoTensor, ErrorCode::internal, "{} reads {}, which nobody stored", node.name(), a.name);
  memory_.use(a.data, node.forward_moment());
  return a.data;
}

TensorId Graph::make_data(ActivationId id, const Node& node) {
  Activation& a = activation(id);
  a.data = memory_.add(a.name, a.size_bytes());
  memory_.use(a.data, node.forward_moment());
  return a.data;
}

Graph::GradientTarget Graph::gradient_target(ActivationId id, const Node& node) {
  Activation& a = activation(id);
  if (!a.needs_gradient) return {};
  const bool first = a.gradient == kNoTensor;
  if (first) a.gradient = memory_.add("d " + a.name, a.size_bytes());
  memory_.use(a.gradient, node.backward_moment());
  return {a.gradient, first ? GradientMode::overwrite : GradientMode::accumulate};
}

TensorId Graph::gradient_of(ActivationId id, const Node& node) {
  const TensorId gradient = activation(id).gradient;
  memory_.use(gradient, node.backward_moment());
  return gradient;
}

void Graph::choose_layout(ParameterId id, const std::function<std::shared_ptr<const ParameterLayout>()>& choose) {
  if (!parameters_.fixed() && !parameters_[id].layout) parameters_.set_layout(id, choose());
}

std::size_t Graph::add_exchange(std::size_t size_bytes) {
  const std::size_t offset = exchange_bytes_;
  exchange_bytes_ += aligned(size_bytes);
  return offset;
}

void Graph::plan(Backend& backend) {
  const int n = static_cast<int>(nodes_.size());
  for (int i = 0; i < n; ++i) {
    nodes_[static_cast<std::size_t>(i)]->forward_moment_ = i;
    nodes_[static_cast<std::size_t>(i)]->backward_moment_ = 2 * n - 1 - i;
  }
  for (Activation& a : activations_) a.layout = backend.activation_layout(a.shape, a.dtype);
  for (auto& node : nodes_) node->register_reads(*this);
  for (auto& node : nodes_) node->plan(*this, backend);
  if (training())
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) (*node)->plan_backward(*this);
  for (auto& node : nodes_) {
    const Op* op = node->op();
    if (!op) continue;
    const OpNeeds needs = op->needs();
    workspace_bytes_ = std::max({workspace_bytes_, needs.forward_workspace_bytes,
                                 training() ? needs.backward_workspace_bytes : std::size_t{0}});
    if (training() && needs.saved_bytes > 0) {
      node->saved_ = memory_.add(node->name() + " saved", needs.saved_bytes);
      memory_.use(node->saved_, node->forward_moment());
      memory_.use(node->saved_, node->backward_moment());
    }
  }
  memory_.place();
  for (auto& node : nodes_) finished_.push_back(node->parameters());
  if (!training() || parameters_.fixed()) return;
  std::vector<ParameterId> order;  // in which backward finishes their gradients
  for (auto ids = finished_.rbegin(); ids != finished_.rend(); ++ids)
    order.insert(order.end(), ids->begin(), ids->end());
  parameters_.fix_order(order);
}

void Graph::bind(const Bindings& bindings) {
  bindings_ = bindings;
  for (auto& node : nodes_) node->bind(*this, bindings_);
}

void Graph::forward(Stream& stream, const ParameterGradients& gradients) {
  const Run run{bindings_, memory_, stream, gradients};
  for (auto& node : nodes_) observed(observer_, trace::Kind::forward, node->name(), [&] { node->forward(run); });
}

void Graph::backward(Stream& stream, const ParameterGradients& gradients,
                     const std::function<void(ParameterId)>& done) {
  const Run run{bindings_, memory_, stream, gradients};
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    observed(observer_, trace::Kind::backward, nodes_[i]->name(), [&] { nodes_[i]->backward(run); });
    if (done)
      for (ParameterId id : finished_[i]) done(id);
  }
}

}  // namespace lockstep::graph
