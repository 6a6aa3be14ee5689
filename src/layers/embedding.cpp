#include "lockstep/ops/embedding.h"
#include "layers/layers.h"
#include "lockstep/error.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

class EmbeddingNode final : public Node {
 public:
  EmbeddingNode(std::string name, TensorId ids, ActivationId out, ParameterId weight, float scale)
      : Node(std::move(name), {}, {out}), ids_(ids), out_(out), weight_(weight), scale_(scale) {}

  void plan(Graph& graph, Backend& backend) override {
    const graph::Activation& y = graph.activation(out_);
    EmbeddingDescription description{.rows = y.shape.n_elements() / y.shape.last(),
                                     .vocabulary = graph.parameters()[weight_.id()].shape[0],
                                     .width = y.shape.last(),
                                     .dtype = y.dtype,
                                     .gradient_dtype = graph.options().gradient_dtype,
                                     .scale = scale_,
                                     .inference = !graph.training()};
    graph.choose_layout(weight_.id(), [&] { return backend.make(description)->weight_layout(); });
    description.weight_layout = graph.parameters()[weight_.id()].layout;
    op_ = backend.make(description);
    weight_.read_as(y.dtype);
    y_ = graph.make_data(out_, *this);
  }
  void plan_backward(Graph& graph) override { dy_ = graph.gradient_of(out_, *this); }
  void forward(const Run& run) override {
    op_->forward({.ids = run.tensor<const std::int32_t>(ids_), .weight = weight_.weights(run), .y = run.tensor(y_)},
                 memory(run), run.stream);
  }
  void backward(const Run& run) override {
    op_->backward({.ids = run.tensor<const std::int32_t>(ids_),
                   .dy = run.tensor(dy_),
                   .dweight = weight_.typed_gradient(run).data,
                   .dweight_mode = weight_.mode(run)},
                  memory(run), run.stream);
  }
  std::vector<const Op*> ops() const override { return {op_.get()}; }
  std::vector<ParameterUse*> parameters() override { return {&weight_}; }
  bool backward_reads_weights() const override { return false; }

 private:
  TensorId ids_;
  ActivationId out_;
  ParameterUse weight_;
  float scale_;
  std::unique_ptr<Embedding> op_;
  TensorId y_ = kNoTensor, dy_ = kNoTensor;
};

}  // namespace

ActivationId embedding(Graph& graph, graph::TensorId ids, const std::string& name, const EmbeddingOptions& options) {
  const ParameterId weight = graph.parameters().parameter({.name = name + ".weight",
                                                           .shape = {options.vocabulary, options.width},
                                                           .kind = ParameterKind::weight,
                                                           .initial = options.initial,
                                                           .trainable = options.trainable});
  const ActivationId y = graph.add_activation({.name = name,
                                               .shape = {graph.options().batch, options.sequence, options.width},
                                               .dtype = graph.options().dtype});
  graph.add_node<EmbeddingNode>(name, ids, y, weight, options.scale);
  return y;
}

// Uses the op of an embedding, with the activation as its table.

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

class SelectRowsNode final : public Node {
 public:
  SelectRowsNode(std::string name, ActivationId in, ActivationId out, TensorId numbers)
      : Node(std::move(name), {in}, {out}), in_(in), out_(out), numbers_(numbers) {}

  void plan(Graph& graph, Backend& backend) override {
    require(!graph.training(), ErrorCode::internal, "{}: selected rows have no gradient", name());
    const graph::Activation& x = graph.activation(in_);
    const graph::Activation& y = graph.activation(out_);
    op_ = backend.make(EmbeddingDescription{.rows = y.shape.n_elements() / y.shape.last(),
                                            .vocabulary = x.shape.n_elements() / x.shape.last(),
                                            .width = x.shape.last(),
                                            .dtype = x.dtype,
                                            .inference = true});
    x_ = graph.data_of(in_, *this);
    y_ = graph.make_data(out_, *this);
  }

  void forward(const Run& run) override {
    op_->forward({.ids = run.tensor<const std::int32_t>(numbers_), .weight = run.tensor(x_), .y = run.tensor(y_)},
                 memory(run), run.stream);
  }

  std::vector<const Op*> ops() const override { return {op_.get()}; }

 private:
  ActivationId in_, out_;
  TensorId numbers_;
  std::unique_ptr<Embedding> op_;
  TensorId x_ = kNoTensor, y_ = kNoTensor;
};

}  // namespace

ActivationId select_rows(Graph& graph, ActivationId x, graph::TensorId numbers, std::int64_t n,
                         const std::string& name) {
  const graph::Activation& in = graph.activation(x);
  const ActivationId y = graph.add_activation({.name = name, .shape = {n, 1, in.shape.last()}, .dtype = in.dtype});
  graph.add_node<SelectRowsNode>(name, x, y, numbers);
  return y;
}

}  // namespace lockstep::layers
