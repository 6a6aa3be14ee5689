#include "lockstep/ops/random_erase.h"

#include "layers/layers.h"
#include "lockstep/error.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

class RandomEraseNode final : public Node {
 public:
  RandomEraseNode(ActivationId in, ActivationId out, const RandomEraseOptions& options, TensorId sample_ids)
      : Node("erase", {in}, {out}), in_(in), out_(out), options_(options), sample_ids_(sample_ids) {}

  void plan(Graph& graph, Backend& backend) override {
    const Activation& in = graph.activation(in_);
    require(in.layout == Layout::nhwc && graph.activation(out_).layout == Layout::nhwc, ErrorCode::internal,
            "images are channels-last");
    op_ = backend.make(RandomEraseDescription{
        .x = in.shape, .dtype = in.dtype, .probability = options_.probability, .seed = options_.seed});
    x_ = graph.data_of(in_, *this);
    y_ = graph.make_data(out_, *this);
  }

  void forward(const Run& run) override {
    op_->forward({.x = run.tensor(x_),
                  .sample_ids = run.tensor<const std::uint32_t>(sample_ids_),
                  .scalars = run.at.scalars,
                  .y = run.tensor(y_)},
                 memory(run), run.stream);
  }
  std::vector<const Op*> ops() const override { return {op_.get()}; }

 private:
  ActivationId in_, out_;
  RandomEraseOptions options_;
  TensorId sample_ids_;
  std::unique_ptr<RandomErase> op_;
  TensorId x_ = kNoTensor, y_ = kNoTensor;
};

}  // namespace

ActivationId random_erase(Graph& graph, ActivationId images, const RandomEraseOptions& options, TensorId sample_ids) {
  if (!graph.training() || options.probability == 0) return images;
  const Activation x = graph.activation(images);
  const ActivationId out = graph.add_activation({.name = "erased images", .shape = x.shape, .dtype = x.dtype});
  graph.add_node<RandomEraseNode>(images, out, options, sample_ids);
  return out;
}

}  // namespace lockstep::layers
