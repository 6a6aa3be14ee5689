// sanitizers: -*FiniteDifferences
// All parts of a normalisation together, as in a network: a convolution computes the statistics of its output, finalize
// computes scale and bias, the next convolution applies them with ReLU and a residual, backward computes dz and the
// reductions, and batch norm's backward ends in the first convolution. The cpu backend is compared with the reference,
// and the reference's chain with PyTorch's definition of it by finite differences in double.
#include <gtest/gtest.h>

#include <string>

#include "lockstep/ops/batch_norm.h"
#include "lockstep/ops/conv2d.h"
#include "test/reference/backend.h"
#include "test/reference/batch_norm.h"
#include "test/reference/conv2d.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/finite_difference.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

using Residual = InputNormalization::Residual;

struct Case {
  std::string name;
  Residual residual;
  bool store;
  Layout layout;
};

const Case kCases[] = {{"no residual", Residual::none, false, Layout::nhwc},
                       {"no residual, stored, blocked", Residual::none, true, Layout::nchw16c},
                       {"plain residual", Residual::plain, true, Layout::nhwc},
                       {"plain residual, blocked", Residual::plain, false, Layout::nchw16c},
                       {"normalised residual", Residual::normalized, false, Layout::nhwc},
                       {"normalised residual, stored, blocked", Residual::normalized, true, Layout::nchw16c}};

const Shape kImage{2, 6, 5, 16};
constexpr std::int64_t kChannels = 32;
const Shape kMiddle{2, 6, 5, kChannels};

Conv2dDescription first_conv(Layout layout) {
  Conv2dDescription d;
  d.x = kImage;
  d.out_channels = kChannels;
  d.statistics = true;
  d.x_layout = d.y_layout = layout;
  return d;
}

Conv2dDescription second_conv(const Case& c, Layout layout) {
  Conv2dDescription d;
  d.x = kMiddle;
  d.out_channels = 16;
  d.stride = 2;
  d.x_layout = d.y_layout = layout;
  d.normalization = InputNormalization{c.residual, true, c.store};
  return d;
}

BatchNormDescription norm(Layout layout) {
  BatchNormDescription d;
  d.x = kMiddle;
  d.layout = layout;
  d.n_rows = static_cast<double>(kMiddle[0] * kMiddle[1] * kMiddle[2]);
  return d;
}

struct Inputs {
  std::vector<float> image = random_normal(kImage.n_elements(), 1);
  std::vector<float> weight1 = random_normal(kChannels * 16 * 9, 2);
  std::vector<float> weight2 = random_normal(16 * kChannels * 9, 3);
  std::vector<float> gamma = random_uniform(kChannels, 4, 0.5, 1.5);
  std::vector<float> beta = random_normal(kChannels, 5);
  std::vector<float> residual = random_normal(kMiddle.n_elements(), 6);
  std::vector<float> residual_scale_bias = random_uniform(2 * kChannels, 7, 0.5, 1.5);
  std::vector<float> residual_mean_inverse_stddev = random_uniform(2 * kChannels, 8, 0.5, 1.5);
  std::vector<float> added = random_normal(kMiddle.n_elements(), 9);
  std::vector<float> dy;

  explicit Inputs(const Case& c) { dy = random_normal(second_conv(c, Layout::nhwc).y().n_elements(), 10); }
};

struct Outputs {
  std::vector<float> y, dweight2, dweight1, dgamma, dbeta, dimage;
};

/// A backend's convolution with its weights and their gradient.
struct PlannedConv {
  PlannedConv(Device& device, const Conv2dDescription& d, const std::vector<float>& canonical)
      : op(device.backend().make(d)),
        memory(device.op_memory(op->memory_requirements())),
        n_canonical(canonical.size()),
        layout(op->weight_layout()) {
    std::vector<float> packed(layout->n_elements());
    layout->pack(canonical, packed.data());
    weight = device.upload(packed);
    dweight = device.garbage<float>(packed.size());
  }
  std::vector<float> gradient(Device& device) const {
    std::vector<float> canonical(n_canonical);
    layout->unpack(device.download(dweight, layout->n_elements()).data(), canonical);
    return canonical;
  }
  std::unique_ptr<Conv2d> op;
  OpMemory memory;
  std::size_t n_canonical;
  std::shared_ptr<const ParameterLayout> layout;
  float* weight = nullptr;
  float* dweight = nullptr;
};

/// The chain planned on a backend, every activation in `layout`.
class Chain {
 public:
  Chain(Backend& backend, const Case& c, Layout layout, const Inputs& in)
      : device_(backend),
        c_(c),
        layout_(layout),
        in_(in),
        d2_(second_conv(c, layout)),
        conv1_(device_, first_conv(layout), in.weight1),
        conv2_(device_, d2_, in.weight2),
        batch_norm_(backend.make(norm(layout))),
        norm_memory_(device_.op_memory(batch_norm_->memory_requirements())),
        middle_(device_.garbage<float>(in.residual.size())),
        y_(device_.garbage<float>(in.dy.size())),
        dimage_(device_.garbage<float>(in.image.size())),
        dz_(upload(kMiddle, in.added)) {}

  void forward() {
    forward1_.x = upload(kImage, in_.image);
    forward1_.weight = conv1_.weight;
    forward1_.y = middle_;
    forward1_.statistics = device_.garbage<double>(kTwoRows);
    conv1_.op->forward(forward1_, conv1_.memory, device_.stream());

    finalize_.statistics = forward1_.statistics.as<const double>();
    finalize_.gamma = device_.upload(in_.gamma);
    finalize_.beta = device_.upload(in_.beta);
    finalize_.scale_bias = device_.garbage<float>(kTwoRows);
    finalize_.mean_inverse_stddev = device_.garbage<float>(kTwoRows);
    batch_norm_->finalize(finalize_, norm_memory_, device_.stream());

    NormalizationForward& normalization = forward2_.normalization;
    forward2_.x = middle_;
    forward2_.weight = conv2_.weight;
    forward2_.y = y_;
    normalization.scale_bias = finalize_.scale_bias;
    if (c_.residual != Residual::none) normalization.residual = upload(kMiddle, in_.residual);
    if (c_.residual == Residual::normalized)
      normalization.residual_scale_bias = device_.upload(in_.residual_scale_bias);
    if (c_.store) normalization.z = device_.garbage<float>(in_.residual.size());
    conv2_.op->forward(forward2_, conv2_.memory, device_.stream());
  }

  void backward() {
    Conv2d::Backward backward2;
    NormalizationBackward& gradient = backward2.gradient;
    backward2.dy = upload(d2_.y(), in_.dy);
    backward2.x = middle_;
    backward2.weight = conv2_.weight;
    backward2.dweight = conv2_.dweight;
    backward2.normalization = forward2_.normalization;
    gradient.mean_inverse_stddev = finalize_.mean_inverse_stddev;
    gradient.added = gradient.dz = dz_;
    gradient.sums = device_.garbage<double>(kTwoRows);
    if (c_.residual == Residual::normalized) {
      gradient.residual_mean_inverse_stddev = device_.upload(in_.residual_mean_inverse_stddev);
      gradient.residual_sums = device_.garbage<double>(kTwoRows);
    }
    conv2_.op->backward(backward2, conv2_.memory, device_.stream());

    norm_backward_.sums = norm_backward_.local_sums = gradient.sums.as<const double>();
    norm_backward_.dz = norm_backward_.dx = dz_;
    norm_backward_.x = middle_;
    norm_backward_.gamma = finalize_.gamma;
    norm_backward_.mean_inverse_stddev = finalize_.mean_inverse_stddev;
    norm_backward_.dgamma = device_.garbage<float>(in_.gamma.size());
    norm_backward_.dbeta = device_.garbage<float>(in_.gamma.size());
    batch_norm_->backward(norm_backward_, norm_memory_, device_.stream());

    Conv2d::Backward backward1;
    backward1.dy = dz_;
    backward1.x = forward1_.x;
    backward1.weight = conv1_.weight;
    backward1.dweight = conv1_.dweight;
    backward1.dx = dimage_;
    conv1_.op->backward(backward1, conv1_.memory, device_.stream());
  }

  Outputs outputs() {
    return {from_layout(d2_.y(), layout_, device_.download(y_, in_.dy.size())),
            conv2_.gradient(device_),
            conv1_.gradient(device_),
            device_.download(norm_backward_.dgamma, in_.gamma.size()),
            device_.download(norm_backward_.dbeta, in_.gamma.size()),
            from_layout(kImage, layout_, device_.download(dimage_, in_.image.size()))};
  }

 private:
  static constexpr auto kTwoRows = static_cast<std::size_t>(2 * kChannels);

  float* upload(const Shape& shape, const std::vector<float>& nhwc) {
    return device_.upload(to_layout(shape, layout_, nhwc));
  }

  Device device_;
  const Case& c_;
  Layout layout_;
  const Inputs& in_;
  Conv2dDescription d2_;
  PlannedConv conv1_, conv2_;
  std::unique_ptr<BatchNorm> batch_norm_;
  OpMemory norm_memory_;
  float *middle_, *y_, *dimage_;
  float* dz_;  // first the added gradient, then dz, then the gradient of the first convolution's output
  Conv2d::Forward forward1_, forward2_;
  BatchNorm::Finalize finalize_;
  BatchNorm::Backward norm_backward_;
};

Outputs run(Backend& backend, const Case& c, Layout layout, const Inputs& in) {
  Chain chain(backend, c, layout, in);
  chain.forward();
  chain.backward();
  return chain.outputs();
}

TEST(NormalizationUnit, ChainAgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases) {
    const Inputs in(c);
    const Outputs expected = run(reference, c, Layout::nhwc, in);
    for (auto& [name, backend] : tested_backends()) {
      if (!computes_in(*backend, c.layout)) continue;
      SCOPED_TRACE(std::string(name) + ", " + c.name);
      const Outputs actual = run(*backend, c, c.layout, in);
      // Two convolutions with 144 and 288 terms have a typical error of sqrt(n) * 2^-24 = 1e-6 of the maximum each,
      // forward and backward, and the normalisation between them amplifies neither: 1e-5 is a few times the sum. (A
      // ReLU that takes the other side would be an error of 1e-1; no element is that close to its kink here.)
      EXPECT_TRUE(near(actual.y, expected.y, 1e-5)) << "y";
      EXPECT_TRUE(near(actual.dweight2, expected.dweight2, 1e-5)) << "dweight of the second convolution";
      EXPECT_TRUE(near(actual.dweight1, expected.dweight1, 1e-5)) << "dweight of the first convolution";
      EXPECT_TRUE(near(actual.dgamma, expected.dgamma, 1e-5)) << "dgamma";
      EXPECT_TRUE(near(actual.dbeta, expected.dbeta, 1e-5)) << "dbeta";
      EXPECT_TRUE(near(actual.dimage, expected.dimage, 1e-5)) << "gradient of the image";
    }
  }
}

/// The chain in double, including the batch statistics: what autograd would differentiate.
class DoubleChain {
 public:
  explicit DoubleChain(const Case& c)
      : c_(c),
        in_(c),
        image(to_double(in_.image)),
        weight1(to_double(in_.weight1)),
        weight2(to_double(in_.weight2)),
        gamma(to_double(in_.gamma)),
        beta(to_double(in_.beta)),
        residual(to_double(in_.residual)),
        residual_scale_bias(to_double(in_.residual_scale_bias)) {}

  double loss() {
    Conv2dDescription d2 = second_conv(c_, Layout::nhwc);
    d2.normalization->store = true;
    std::vector<double> middle(residual.size()), z(residual.size()), y(in_.dy.size());
    std::vector<double> statistics(2 * gamma.size()), scale_bias(2 * gamma.size()), mean(2 * gamma.size());
    reference::conv2d_forward<double>(first_conv(Layout::nhwc),
                                      {image.data(), weight1.data(), middle.data(), statistics.data(), {}});
    reference::batch_norm_finalize<double>(
        norm(Layout::nhwc), {statistics.data(), gamma.data(), beta.data(), scale_bias.data(), mean.data(), nullptr});
    reference::conv2d_forward<double>(d2, {middle.data(),
                                           weight2.data(),
                                           y.data(),
                                           nullptr,
                                           {scale_bias.data(), residual.data(), residual_scale_bias.data(), z.data()}});
    return dot(to_double(in_.dy), y) + dot(to_double(in_.added), z);
  }

 private:
  const Case& c_;
  Inputs in_;

 public:
  std::vector<double> image, weight1, weight2, gamma, beta, residual, residual_scale_bias;
};

TEST(NormalizationUnit, ChainAgreesWithFiniteDifferences) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases) {
    if (c.layout != Layout::nhwc) continue;
    SCOPED_TRACE(c.name);
    const Outputs gradients = run(reference, c, Layout::nhwc, Inputs(c));
    DoubleChain chain(c);
    const auto loss = [&] { return chain.loss(); };
    // The gradients were stored in fp32 between all ops: an error of about 1e-6 of the maximum.
    EXPECT_TRUE(gradient_matches(chain.image, to_double(gradients.dimage), loss, 1e-5)) << "image";
    EXPECT_TRUE(gradient_matches(chain.weight1, to_double(gradients.dweight1), loss, 1e-5)) << "first weights";
    EXPECT_TRUE(gradient_matches(chain.weight2, to_double(gradients.dweight2), loss, 1e-5)) << "second weights";
    EXPECT_TRUE(gradient_matches(chain.gamma, to_double(gradients.dgamma), loss, 1e-5)) << "gamma";
    EXPECT_TRUE(gradient_matches(chain.beta, to_double(gradients.dbeta), loss, 1e-5)) << "beta";
  }
}

}  // namespace
}  // namespace lockstep::test
