#include "lockstep/ops/attention.h"

#include "graph/graph.h"
#include "layers/layers.h"
#include "lockstep/error.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

class AttentionNode final : public Node, public CountsFlops {
 public:
  AttentionNode(std::string name, ActivationId qkv, ActivationId y, TensorId document_start,
                const AttentionOptions& options)
      : Node(std::move(name), {qkv}, {y}),
        in_(qkv),
        out_(y),
        document_start_(document_start),
        description_{.heads = options.heads,
                     .kv_heads = options.kv_heads,
                     .head_dim = options.head_dim,
                     .scale = options.scale,
                     .window = options.window,
                     .documents = document_start != kNoTensor} {}

  void plan(Graph& graph, Backend& backend) override {
    const graph::Activation& x = graph.activation(in_);
    description_.batch = x.shape[0];
    description_.sequence = x.shape[1];
    if (description_.window >= description_.sequence) description_.window = 0;  // it has no effect
    description_.dtype = x.dtype;
    description_.inference = !graph.training();
    op_ = backend.make(description_);
    trains_ = graph.training() && x.needs_gradient;
    x_ = graph.data_of(in_, *this);
    y_ = graph.make_data(out_, *this);
  }

  void plan_backward(Graph& graph) override {
    const graph::Activation& x = graph.activation(in_);
    require(x.n_readers == 1, ErrorCode::internal, "{}: another layer reads {} too, but its gradient is overwritten",
            name(), x.name);
    dy_ = graph.gradient_of(out_, *this);
    reads(Phase::backward, x_);
    reads(Phase::backward, y_);
    dx_ = graph.gradient_target(in_, *this);
  }

  void forward(const Run& run) override {
    op_->forward(
        {.qkv = run.tensor(x_), .document_start = run.tensor<const std::int32_t>(document_start_), .y = run.tensor(y_)},
        memory(run), run.stream);
  }

  void backward(const Run& run) override {
    op_->backward({.qkv = run.tensor(x_),
                   .document_start = run.tensor<const std::int32_t>(document_start_),
                   .y = run.tensor(y_),
                   .dy = run.tensor(dy_),
                   .dqkv = run.tensor(dx_.tensor)},
                  memory(run), run.stream);
  }

  std::vector<const Op*> ops() const override { return {op_.get()}; }
  /// Counts q times k, and the probabilities times v, for each token with itself and all earlier tokens of the window;
  /// in backward, the gradients of both operands of both products. Document boundaries, which differ from batch to
  /// batch, are ignored.
  Flops flops() const override {
    const auto d = [](std::int64_t n) { return static_cast<double>(n); };
    const AttentionDescription& a = description_;
    const double window = d(a.window > 0 ? a.window : a.sequence);
    const double pairs = window * (window + 1) / 2 + (d(a.sequence) - window) * window;
    return {.forward = 2 * 2.0 * d(a.batch) * pairs * d(a.heads * a.head_dim), .passes = trains_ ? 3.0 : 1.0};
  }
  /// Its time is quadratic in the sequence length, and its output is smaller than its input.
  Recomputation recomputation() const override { return Recomputation::keep; }

 private:
  ActivationId in_, out_;
  TensorId document_start_;
  AttentionDescription description_;
  std::unique_ptr<Attention> op_;
  bool trains_ = false;
  TensorId x_ = kNoTensor, y_ = kNoTensor, dy_ = kNoTensor;
  Graph::GradientTarget dx_;
};

}  // namespace

ActivationId attention(Graph& graph, ActivationId qkv, graph::TensorId document_start, const std::string& name,
                       const AttentionOptions& options) {
  const graph::Activation& x = graph.activation(qkv);
  const std::int64_t width = (options.heads + 2 * options.kv_heads) * options.head_dim;
  require(x.shape.rank() == 3 && x.shape.last() == width, ErrorCode::internal,
          "{}: {} has the shape {}, but {} heads of queries and {} of keys and of values, of {} elements, need (batch, "
          "sequence, {})",
          name, x.name, x.shape.text(), options.heads, options.kv_heads, options.head_dim, width);
  const ActivationId y = graph.add_activation(
      {.name = name, .shape = x.shape.with_dimension(-1, options.heads * options.head_dim), .dtype = x.dtype});
  graph.add_node<AttentionNode>(name, qkv, y, document_start, options);
  return y;
}

}  // namespace lockstep::layers
