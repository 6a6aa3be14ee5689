// Uses the op of an embedding, with the activation as its table.
#include "layers/layers.h"
#include "lockstep/error.h"
#include "lockstep/ops/embedding.h"

namespace lockstep::layers {

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
