#include "lockstep/ops/rms_norm.h"

#include <algorithm>

#include "layers/layers.h"
#include "lockstep/error.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

class RmsNormNode final : public Node {
 public:
  /// Without a residual, `residual` and `stream` are kNoActivation.
  RmsNormNode(std::string name, ActivationId x, ActivationId residual, ActivationId stream, ActivationId y,
              ParameterId weight, const RmsNormOptions& options)
      : Node(std::move(name), residual == kNoActivation ? std::vector{x} : std::vector{x, residual},
             residual == kNoActivation ? std::vector{y} : std::vector{stream, y}),
        in_(x),
        residual_(residual),
        stream_(stream),
        out_(y),
        weight_(weight),
        options_(options) {}

  void plan(Graph& graph, Backend& backend) override {
    const auto& x = graph.activation(in_);
    op_ = backend.make(RmsNormDescription{.rows = x.shape.n_elements() / x.shape.last(),
                                          .width = x.shape.last(),
                                          .dtype = x.dtype,
                                          .residual = has_residual(),
                                          .epsilon = options_.epsilon,
                                          .weight_offset = weight_offset(options_),
                                          .inference = !graph.training()});
    x_ = graph.data_of(in_, *this);
    if (has_residual()) {
      r_ = graph.data_of(residual_, *this);
      s_ = graph.make_data(stream_, *this);
    }
    y_ = graph.make_data(out_, *this);
  }

  void plan_backward(Graph& graph) override {
    dy_ = graph.gradient_of(out_, *this);
    reads(Phase::backward, has_residual() ? s_ : x_);
    if (!has_residual()) {
      ds_ = graph.gradient_target(in_, *this);
      return;
    }
    // x and the residual have the same gradient, and share its tensor. Another layer that reads x would therefore add
    // to both gradients. Another layer that reads the residual may add to it once the backward pass has left the layers
    // that x comes from.
    auto &x = graph.activation(in_), &r = graph.activation(residual_);
    require(x.n_readers == 1 || !x.needs_gradient, ErrorCode::internal, "{}: another layer reads {} too: {}", name(),
            x.name, kRemedy);
    require(!r.needs_gradient || (r.gradient == kNoTensor && !is_read_after(graph, residual_, x.producer)),
            ErrorCode::internal, "{}: another layer reads {} after the first one of {}: {}", name(), r.name, x.name,
            kRemedy);
    added_ = graph.activation(stream_).gradient;
    reads(Phase::backward, added_);
    if (!x.needs_gradient && !r.needs_gradient) return;
    ds_ = {graph.memory().add("d " + graph.activation(stream_).name, x.size_bytes()), GradientMode::overwrite};
    writes(Phase::backward, ds_.tensor);
    if (x.needs_gradient) x.gradient = ds_.tensor;
    if (r.needs_gradient) r.gradient = ds_.tensor;
  }

  void forward(const Run& run) override {
    op_->forward({.x = run.tensor(x_),
                  .residual = run.tensor(r_),
                  .weight = weight_.master(run),
                  .s = run.tensor(s_),
                  .y = run.tensor(y_)},
                 memory(run), run.stream);
  }

  void backward(const Run& run) override {
    op_->backward({.dy = run.tensor(dy_),
                   .s = run.tensor(has_residual() ? s_ : x_),
                   .weight = weight_.master(run),
                   .added = run.tensor(added_),
                   .ds = run.tensor(ds_.tensor),
                   .ds_mode = ds_.mode,
                   .dweight = weight_.gradient(run),
                   .dweight_mode = weight_.mode(run)},
                  memory(run), run.stream);
  }

  std::vector<const Op*> ops() const override { return {op_.get()}; }
  std::vector<ParameterUse*> parameters() override { return {&weight_}; }

 private:
  static constexpr const char* kRemedy = "use add() and a norm without a residual";

  /// Whether a node from `first` on, other than this one, reads the activation.
  bool is_read_after(const Graph& graph, ActivationId id, const Node* first) const {
    bool is_after = first == nullptr;
    for (const auto& node : graph.nodes()) {
      is_after = is_after || node.get() == first;
      if (is_after && node.get() != this && std::ranges::find(node->inputs(), id) != node->inputs().end()) return true;
    }
    return false;
  }
  bool has_residual() const { return residual_ != kNoActivation; }

  ActivationId in_, residual_, stream_, out_;
  ParameterUse weight_;
  RmsNormOptions options_;
  std::unique_ptr<RmsNorm> op_;
  TensorId x_ = kNoTensor, r_ = kNoTensor, s_ = kNoTensor, y_ = kNoTensor, dy_ = kNoTensor, added_ = kNoTensor;
  Graph::GradientTarget ds_;
};

ActivationId output_like(Graph& graph, ActivationId x, const std::string& name) {
  const auto shape = graph.activation(x).shape;
  return graph.add_activation({.name = name, .shape = shape, .dtype = graph.activation(x).dtype});
}

}  // namespace

ParameterId norm_weight(Graph& graph, const std::string& name, std::int64_t width, const RmsNormOptions& options) {
  return graph.parameters().parameter(
      {.name = name + ".weight",
       .shape = {width},
       .kind = ParameterKind::norm,
       .initial = {.kind = Initializer::Kind::constant, .value = 1 - weight_offset(options)},
       .trainable = options.trainable});
}

ActivationId rms_norm(Graph& graph, ActivationId x, const std::string& name, const RmsNormOptions& options) {
  const ParameterId weight = norm_weight(graph, name, graph.activation(x).shape.last(), options);
  const ActivationId y = output_like(graph, x, name);
  graph.add_node<RmsNormNode>(name, x, kNoActivation, kNoActivation, y, weight, options);
  return y;
}

NormalizedStream add_rms_norm(Graph& graph, ActivationId x, ActivationId residual, const std::string& name,
                              const RmsNormOptions& options) {
  require(graph.activation(x).shape == graph.activation(residual).shape &&
              graph.activation(x).dtype == graph.activation(residual).dtype,
          ErrorCode::internal, "{}: {} and {} must have the same shape and type", name, graph.activation(x).name,
          graph.activation(residual).name);
  const ParameterId weight = norm_weight(graph, name, graph.activation(x).shape.last(), options);
  const ActivationId stream = output_like(graph, x, name + " stream"), y = output_like(graph, x, name);
  graph.add_node<RmsNormNode>(name, x, residual, stream, y, weight, options);
  return {stream, y};
}

}  // namespace lockstep::layers
