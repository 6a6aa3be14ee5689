#include "lockstep/ops/image_input.h"
#include "layers/layers.h"
#include "lockstep/error.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

class ImageInputNode final : public Node {
 public:
  ImageInputNode(ActivationId out, const ImageInputOptions& options, TensorId images, TensorId sample_ids,
                 const ImageRegionTensors& regions)
      : Node("input", {}, {out}),
        out_(out),
        options_(options),
        images_(images),
        sample_ids_(sample_ids),
        regions_(regions) {}

  void plan(Graph& graph, Backend& backend) override {
    Activation& out = graph.activation(out_);
    require(out.layout == Layout::nhwc, ErrorCode::internal, "images are channels-last");
    op_ = backend.make(ImageInputDescription{.x = out.shape,
                                             .dtype = out.dtype,
                                             .mean = options_.mean,
                                             .stddev = options_.stddev,
                                             .crop_padding = graph.training() ? options_.crop_padding : 0,
                                             .flip = graph.training() && options_.flip,
                                             .seed = options_.seed,
                                             .regions = options_.regions});
    y_ = graph.make_data(out_, *this);
  }

  void forward(const Run& run) override {
    op_->forward({.images = run.tensor<const std::uint8_t>(images_),
                  .regions = run.tensor<const ImageRegion>(regions_.regions),
                  .places = run.tensor<const std::int32_t>(regions_.places),
                  .sample_ids = run.tensor<const std::uint32_t>(sample_ids_),
                  .scalars = run.at.scalars,
                  .y = run.tensor(y_)},
                 memory(run), run.stream);
  }
  std::vector<const Op*> ops() const override { return {op_.get()}; }

 private:
  ActivationId out_;
  ImageInputOptions options_;
  TensorId images_, sample_ids_;
  ImageRegionTensors regions_;
  std::unique_ptr<ImageInput> op_;
  TensorId y_ = kNoTensor;
};

}  // namespace

ActivationId image_input(Graph& graph, const ImageInputOptions& options, graph::TensorId images,
                         graph::TensorId sample_ids, const ImageRegionTensors& regions) {
  const Shape shape{graph.options().batch, options.height, options.width, options.channels};
  const ActivationId out = graph.add_activation({.name = "input", .shape = shape, .dtype = graph.options().dtype});
  graph.add_node<ImageInputNode>(out, options, images, sample_ids, regions);
  return out;
}

}  // namespace lockstep::layers
