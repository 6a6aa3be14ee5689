#include <fmt/format.h>
#include <cmath>
#include <cstddef>

#include "layers/layers.h"
#include "lockstep/error.h"
#include "lockstep/ops/image_input.h"
#include "lockstep/ops/mix_images.h"
#include "lockstep/ops/random_erase.h"

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

namespace {

/// The distribution function of Beta(a, a) at x in [0, 1/2], by the power series of the incomplete beta function
/// (Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.5.4, in the form of Gauss's hypergeometric series):
///     I_x(a, a) = x^a (1 - x)^a / (a B(a, a)) * sum_n x^n prod_(i = 1..n) (2 a + i - 1) / (a + i)
/// Its terms decrease at least as fast as 2^-n in the end.
double distribution(double x, double a) {
  if (x <= 0) return 0;
  const double log_beta = 2 * std::lgamma(a) - std::lgamma(2 * a);
  double term = 1, sum = 1;
  for (int n = 1; n < 1000 && term > 1e-17 * sum; ++n) {
    term *= x * (2 * a + n - 1) / (a + n);
    sum += term;
  }
  return std::exp(a * (std::log(x) + std::log1p(-x)) - log_beta) / a * sum;
}

}  // namespace

std::vector<float> beta_quantiles(double alpha) {
  std::vector<float> quantiles(kBetaQuantiles);
  const std::size_t n = quantiles.size();
  for (std::size_t i = 0; i < n / 2; ++i) {
    const double p = (static_cast<double>(i) + 0.5) / static_cast<double>(n);
    // Bisects the logarithm: with a small alpha, most quantiles are far below the spacing of doubles around 1.
    double low = -700, high = std::log(0.5);
    for (int step = 0; step < 60; ++step) {
      const double middle = 0.5 * (low + high);
      (distribution(std::exp(middle), alpha) < p ? low : high) = middle;
    }
    quantiles[i] = static_cast<float>(std::exp(high));
    quantiles[n - 1 - i] = static_cast<float>(1.0 - std::exp(high));
  }
  return quantiles;
}

}  // namespace lockstep::layers
