#include "lockstep/ops/mix_images.h"

#include <fmt/format.h>

#include "layers/beta_quantiles.h"
#include "layers/layers.h"
#include "lockstep/error.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

class MixImagesNode final : public Node {
 public:
  struct Quantiles {
    ConstantId mixup = kNoConstant, cutmix = kNoConstant;
  };
  MixImagesNode(ActivationId in, ActivationId out, const MixedImages& mixed, TensorId labels, TensorId sample_ids,
                const Quantiles& quantiles, std::uint32_t seed)
      : Node("mix", {in}, {out}),
        in_(in),
        mixed_(mixed),
        labels_(labels),
        sample_ids_(sample_ids),
        quantiles_(quantiles),
        seed_(seed) {}

  void plan(Graph& graph, Backend& backend) override {
    const Activation& in = graph.activation(in_);
    require(in.layout == Layout::nhwc && graph.activation(mixed_.images).layout == Layout::nhwc, ErrorCode::internal,
            "images are channels-last");
    op_ = backend.make(MixImagesDescription{.x = in.shape, .dtype = in.dtype, .seed = seed_});
    x_ = graph.data_of(in_, *this);
    y_ = graph.make_data(mixed_.images, *this);
    writes(Phase::forward, mixed_.partner_labels);
    writes(Phase::forward, mixed_.weight);
  }

  void forward(const Run& run) override {
    op_->forward({.x = run.tensor(x_),
                  .labels = run.tensor<const std::int32_t>(labels_),
                  .sample_ids = run.tensor<const std::uint32_t>(sample_ids_),
                  .mixup_quantiles = run.constant(quantiles_.mixup),
                  .cutmix_quantiles = run.constant(quantiles_.cutmix),
                  .scalars = run.at.scalars,
                  .y = run.tensor(y_),
                  .partner_labels = run.tensor<std::int32_t>(mixed_.partner_labels),
                  .weight = run.tensor<float>(mixed_.weight)},
                 memory(run), run.stream);
  }
  std::vector<const Op*> ops() const override { return {op_.get()}; }

 private:
  ActivationId in_;
  MixedImages mixed_;
  TensorId labels_, sample_ids_;
  Quantiles quantiles_;
  std::uint32_t seed_;
  std::unique_ptr<MixImages> op_;
  TensorId x_ = kNoTensor, y_ = kNoTensor;
};

ConstantId quantiles_of(Graph& graph, const char* what, double alpha) {
  if (alpha == 0) return kNoConstant;
  return graph.parameters().add_constant(fmt::format("{} quantiles", what), beta_quantiles(alpha));
}

}  // namespace

MixedImages mix_images(Graph& graph, ActivationId images, const MixImagesOptions& options, TensorId labels,
                       TensorId sample_ids) {
  const bool mixes = graph.training() && (options.mixup_alpha > 0 || options.cutmix_alpha > 0);
  if (!mixes) return {.images = images};
  const Activation x = graph.activation(images);
  const auto batch = static_cast<std::size_t>(x.shape[0]);
  const MixedImages mixed{.images = graph.add_activation({.name = "mixed images", .shape = x.shape, .dtype = x.dtype}),
                          .partner_labels = graph.memory().add("labels of partners", batch * sizeof(std::int32_t)),
                          .weight = graph.memory().add("weight of labels", sizeof(float))};
  const MixImagesNode::Quantiles quantiles{.mixup = quantiles_of(graph, "mixup", options.mixup_alpha),
                                           .cutmix = quantiles_of(graph, "cutmix", options.cutmix_alpha)};
  graph.add_node<MixImagesNode>(images, mixed.images, mixed, labels, sample_ids, quantiles, options.seed);
  return mixed;
}

}  // namespace lockstep::layers
