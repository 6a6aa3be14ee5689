#include "layers/layers.h"
#include "layers/pending_normalization.h"
#include "lockstep/ops/pool2d.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

class PoolingNode final : public Node {
 public:
  PoolingNode(std::string name, ActivationId in, ActivationId out, const Pool2dDescription& description)
      : Node(std::move(name), {in}, {out}), in_(in), out_(out), description_(description) {}

  void plan(Graph& graph, Backend& backend) override {
    in_.plan(graph, *this);
    description_.x_layout = graph.activation(in_.id()).layout;
    description_.y_layout = graph.activation(out_).layout;
    description_.normalization = in_.normalization();
    description_.inference = !graph.training();
    op_ = backend.make(description_);
    y_ = graph.make_data(out_, *this);
  }

  void plan_backward(Graph& graph) override {
    in_.plan_backward(graph, *this);
    dy_ = graph.gradient_of(out_, *this);
    added_ = graph.added_gradient_of(out_, *this);
  }

  bool adds_gradients() const override { return true; }

  void forward(const Run& run) override {
    op_->forward({.x = in_.x(run), .y = run.tensor(y_), .normalization = in_.forward_args(run)}, memory(run),
                 run.stream);
  }

  void backward(const Run& run) override {
    op_->backward({.dy = run.tensor(dy_),
                   .added = run.tensor(added_),
                   .x = in_.x(run),
                   .dx = in_.dx(run),
                   .dx_mode = in_.dx_mode(),
                   .normalization = in_.forward_args(run),
                   .gradient = in_.backward_args(run)},
                  memory(run), run.stream);
  }

  std::vector<const Op*> ops() const override { return {op_.get()}; }

 private:
  NormalizedInput in_;
  ActivationId out_;
  Pool2dDescription description_;
  std::unique_ptr<Pool2d> op_;
  TensorId y_ = kNoTensor, dy_ = kNoTensor, added_ = kNoTensor;
};

ActivationId pool(Graph& graph, ActivationId x, const std::string& name, const Pool2dDescription& description) {
  const ActivationId y = graph.add_activation({.name = name, .shape = description.y(), .dtype = description.y_dtype});
  graph.add_node<PoolingNode>(name, x, y, description);
  return y;
}

}  // namespace

ActivationId max_pool(Graph& graph, ActivationId x, const std::string& name, int kernel_size, int stride, int padding) {
  return pool(graph, x, name,
              {.kind = Pool2dDescription::Kind::max,
               .x = graph.activation(x).shape,
               .kernel_size = kernel_size,
               .stride = stride,
               .padding = padding,
               .dtype = graph.activation(x).dtype,
               .y_dtype = graph.activation(x).dtype,
               .normalization = std::nullopt});
}

ActivationId global_average_pool(Graph& graph, ActivationId x, const std::string& name) {
  return pool(graph, x, name,
              {.kind = Pool2dDescription::Kind::average,
               .x = graph.activation(x).shape,
               .kernel_size = 0,
               .stride = 1,
               .padding = 0,
               .dtype = graph.activation(x).dtype,
               .y_dtype = DType::fp32,
               .normalization = std::nullopt});
}

}  // namespace lockstep::layers
