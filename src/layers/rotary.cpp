#include "lockstep/ops/rotary.h"

#include "layers/layers.h"
#include "lockstep/error.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

class RotaryNode final : public Node {
 public:
  RotaryNode(std::string name, ActivationId in, ActivationId out, TensorId positions, ParameterId q_norm,
             ParameterId k_norm, const RotaryOptions& options)
      : Node(std::move(name), {in}, {out}),
        in_(in),
        out_(out),
        positions_(positions),
        table_(options.table),
        q_norm_(q_norm),
        k_norm_(k_norm),
        description_{.heads = options.heads,
                     .kv_heads = options.kv_heads,
                     .head_dim = options.head_dim,
                     .pairs = options.pairs,
                     .norm = q_norm != kNoParameter,
                     .epsilon = options.norms.epsilon,
                     .weight_offset = weight_offset(options.norms)} {}

  void plan(Graph& graph, Backend& backend) override {
    const graph::Activation& x = graph.activation(in_);
    const std::size_t table_size = graph.parameters().constant(table_).values.size();
    description_.rows = x.shape.n_elements() / x.shape.last();
    description_.max_positions = static_cast<std::int64_t>(table_size) / description_.head_dim;
    description_.dtype = x.dtype;
    description_.inference = !graph.training();
    op_ = backend.make(description_);
    x_ = graph.data_of(in_, *this);
    // Without norms, nothing reads x after this node. y then takes its place, and the values stay where they are.
    if (description_.norm || x.n_readers > 1) {
      y_ = graph.make_data(out_, *this);
    } else {
      y_ = graph.activation(out_).data = x_;
      updates(Phase::forward, y_);
    }
  }

  void plan_backward(Graph& graph) override {
    dy_ = graph.gradient_of(out_, *this);
    if (description_.norm) reads(Phase::backward, x_);
    // The gradient of x can take the place of dy, because no other node reads dy after this one.
    graph::Activation& x = graph.activation(in_);
    if (x.needs_gradient && x.gradient == kNoTensor) {
      x.gradient = dy_;
      dx_ = {dy_, GradientMode::overwrite};
      updates(Phase::backward, dy_);
    } else {
      dx_ = graph.gradient_target(in_, *this);
    }
  }

  void forward(const Run& run) override {
    op_->forward({.x = run.tensor(x_),
                  .positions = run.tensor<const std::int32_t>(positions_),
                  .table = run.constant(table_),
                  .q_norm = q_norm_.master(run),
                  .k_norm = k_norm_.master(run),
                  .y = run.tensor(y_)},
                 memory(run), run.stream);
  }

  void backward(const Run& run) override {
    op_->backward({.dy = run.tensor(dy_),
                   .x = run.tensor(x_),
                   .positions = run.tensor<const std::int32_t>(positions_),
                   .table = run.constant(table_),
                   .q_norm = q_norm_.master(run),
                   .k_norm = k_norm_.master(run),
                   .dx = run.tensor(dx_.tensor),
                   .dx_mode = dx_.mode,
                   .dq_norm = q_norm_.gradient(run),
                   .dq_norm_mode = q_norm_.mode(run),
                   .dk_norm = k_norm_.gradient(run),
                   .dk_norm_mode = k_norm_.mode(run)},
                  memory(run), run.stream);
  }

  std::vector<const Op*> ops() const override { return {op_.get()}; }
  std::vector<ParameterUse*> parameters() override { return {&q_norm_, &k_norm_}; }

 private:
  ActivationId in_, out_;
  TensorId positions_;
  ConstantId table_;
  ParameterUse q_norm_, k_norm_;
  RotaryDescription description_;
  std::unique_ptr<Rotary> op_;
  TensorId x_ = kNoTensor, y_ = kNoTensor, dy_ = kNoTensor;
  Graph::GradientTarget dx_;
};

}  // namespace

graph::ConstantId rotary_positions(Graph& graph, const std::string& name, std::span<const double> frequencies,
                                   double factor, std::int64_t max_positions) {
  return graph.parameters().add_constant(name, rotary_table(frequencies, factor, max_positions));
}

ActivationId rotary(Graph& graph, ActivationId qkv, graph::TensorId positions, const std::string& name,
                    const RotaryOptions& options) {
  const graph::Activation& x = graph.activation(qkv);
  require(x.shape.last() == (options.heads + 2 * options.kv_heads) * options.head_dim, ErrorCode::internal,
          "{}: a row of {} does not consist of {} query, {} key and {} value heads of {} elements", name,
          x.shape.text(), options.heads, options.kv_heads, options.kv_heads, options.head_dim);
  require(options.q_norm.empty() == options.k_norm.empty(), ErrorCode::internal,
          "{}: queries and keys must both have a norm, or neither", name);
  const auto norm = [&](const std::string& of) {
    if (of.empty()) return kNoParameter;
    return norm_weight(graph, of, options.head_dim, options.norms);
  };
  const ParameterId q_norm = norm(options.q_norm), k_norm = norm(options.k_norm);
  const ActivationId y = graph.add_activation({.name = name, .shape = x.shape, .dtype = x.dtype});
  graph.add_node<RotaryNode>(name, qkv, y, positions, q_norm, k_norm, options);
  return y;
}

}  // namespace lockstep::layers
