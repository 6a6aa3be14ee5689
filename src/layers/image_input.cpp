#include "layers/layers.h"
#include "lockstep/error.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node speaks of little else

class ImageInputNode final : public Node {
 public:
  ImageInputNode(ActivationId out, const ImageInputOptions& options, const ImageBuffers& buffers)
      : Node("input", {}, {out}), out_(out), options_(options), buffers_(buffers) {}

  void plan(Graph& graph, Backend& backend) override {
    Activation& out = graph.activation(out_);
    require(out.layout == Layout::nhwc, ErrorCode::internal, "images are channels-last");
    op_ = backend.image_input({.x = out.shape,
                               .dtype = out.dtype,
                               .mean = options_.mean,
                               .stddev = options_.stddev,
                               .crop_padding = graph.training() ? options_.crop_padding : 0,
                               .flip = graph.training() && options_.flip,
                               .seed = options_.seed});
    y_ = graph.make_data(out_, *this);
  }

  void forward(const Run& run) override {
    op_->forward({.images = run.tensor<const std::uint8_t>(buffers_.images),
                  .sample_ids = run.tensor<const std::uint32_t>(buffers_.sample_ids),
                  .scalars = run.at.scalars,
                  .y = run.tensor(y_)},
                 memory(run), run.stream);
  }
  const Op* op() const override { return op_.get(); }

 private:
  ActivationId out_;
  ImageInputOptions options_;
  ImageBuffers buffers_;
  std::unique_ptr<ImageInput> op_;
  TensorId y_ = kNoTensor;
};

}  // namespace

ActivationId image_input(Graph& graph, const ImageInputOptions& options, ImageBuffers& buffers) {
  const std::int64_t n = graph.options().batch;
  const Shape shape{n, options.height, options.width, options.channels};
  MemoryPlan& memory = graph.memory();
  buffers.images = memory.add("images", static_cast<std::size_t>(shape.n_elements()), true);
  buffers.labels = memory.add("labels", static_cast<std::size_t>(n) * sizeof(std::int32_t), true);
  buffers.sample_ids = memory.add("sample ids", static_cast<std::size_t>(n) * sizeof(std::uint32_t), true);
  const ActivationId out = graph.add_activation({.name = "input", .shape = shape, .dtype = graph.options().dtype});
  graph.add_node<ImageInputNode>(out, options, buffers);
  return out;
}

}  // namespace lockstep::layers
