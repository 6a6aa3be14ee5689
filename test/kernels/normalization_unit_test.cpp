// The parts of a normalisation together, as a network uses them: a convolution gives its output's statistics,
// finalize makes scale and bias, the next convolution applies them with ReLU and a residual, backward brings dz and
// the reductions back, and batch norm's backward ends in the first convolution. The cpu backend against the reference,
// and the reference's chain against PyTorch's definition of it by finite differences, in double.
#include <gtest/gtest.h>

#include <string>

#include "test/reference/backend.h"
#include "test/reference/batchnorm.h"
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

/// A convolution of a backend with its weights and their gradient.
struct PlannedConv {
  PlannedConv(Device& device, const Conv2dDescription& d, const std::vector<float>& canonical)
      : op(device.backend().conv2d(d)), memory(device.op_memory(op->needs())), n_canonical(canonical.size()),
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

Outputs run(Backend& backend, const Case& c, Layout layout, const Inputs& in) {
  Device device(backend);
  const Conv2dDescription d1 = first_conv(layout), d2 = second_conv(c, layout);
  PlannedConv conv1(device, d1, in.weight1), conv2(device, d2, in.weight2);
  const auto batch_norm = backend.batch_norm(norm(layout));
  const OpMemory norm_memory = device.op_memory(batch_norm->needs());
  constexpr auto kTwoChannels = static_cast<std::size_t>(2 * kChannels);
  const auto n_middle = static_cast<std::size_t>(kMiddle.n_elements());
  const auto n_y = static_cast<std::size_t>(d2.y().n_elements());
  const auto activation = [&](const std::vector<float>& nhwc) {
    return device.upload(to_layout(kMiddle, layout, nhwc));
  };

  Conv2d::Forward forward1;
  auto* middle = device.garbage<float>(n_middle);
  forward1.x = device.upload(to_layout(kImage, layout, in.image));
  forward1.weight = conv1.weight;
  forward1.y = middle;
  forward1.statistics = device.garbage<double>(kTwoChannels);
  conv1.op->forward(forward1, conv1.memory, device.stream());

  BatchNorm::Finalize finalize;
  finalize.statistics = forward1.statistics;
  finalize.gamma = device.upload(in.gamma);
  finalize.beta = device.upload(in.beta);
  finalize.scale_bias = device.garbage<float>(kTwoChannels);
  finalize.mean_inverse_stddev = device.garbage<float>(kTwoChannels);
  batch_norm->finalize(finalize, norm_memory, device.stream());

  Conv2d::Forward forward2;
  auto* y = device.garbage<float>(n_y);
  forward2.x = middle;
  forward2.weight = conv2.weight;
  forward2.y = y;
  forward2.normalization.scale_bias = finalize.scale_bias;
  if (c.residual != Residual::none) forward2.normalization.residual = activation(in.residual);
  if (c.residual == Residual::normalized)
    forward2.normalization.residual_scale_bias = device.upload(in.residual_scale_bias);
  if (c.store) forward2.normalization.z = device.garbage<float>(n_middle);
  conv2.op->forward(forward2, conv2.memory, device.stream());

  Conv2d::Backward backward2;
  auto* dz = activation(in.added);
  backward2.dy = device.upload(to_layout(d2.y(), layout, in.dy));
  backward2.x = middle;
  backward2.weight = conv2.weight;
  backward2.dweight = conv2.dweight;
  backward2.normalization = forward2.normalization;
  backward2.gradient.mean_inverse_stddev = finalize.mean_inverse_stddev;
  backward2.gradient.added = dz;
  backward2.gradient.dz = dz;
  backward2.gradient.sums = device.garbage<double>(kTwoChannels);
  if (c.residual == Residual::normalized) {
    backward2.gradient.residual_mean_inverse_stddev = device.upload(in.residual_mean_inverse_stddev);
    backward2.gradient.residual_sums = device.garbage<double>(kTwoChannels);
  }
  conv2.op->backward(backward2, conv2.memory, device.stream());

  BatchNorm::Backward norm_backward;
  norm_backward.sums = norm_backward.local_sums = backward2.gradient.sums;
  norm_backward.dz = norm_backward.dx = dz;
  norm_backward.x = middle;
  norm_backward.gamma = finalize.gamma;
  norm_backward.mean_inverse_stddev = finalize.mean_inverse_stddev;
  norm_backward.dgamma = device.garbage<float>(in.gamma.size());
  norm_backward.dbeta = device.garbage<float>(in.gamma.size());
  batch_norm->backward(norm_backward, norm_memory, device.stream());

  Conv2d::Backward backward1;
  auto* dimage = device.garbage<float>(in.image.size());
  backward1.dy = dz;
  backward1.x = forward1.x;
  backward1.weight = conv1.weight;
  backward1.dweight = conv1.dweight;
  backward1.dx = dimage;
  conv1.op->backward(backward1, conv1.memory, device.stream());

  return {from_layout(d2.y(), layout, device.download(y, n_y)),
          conv2.gradient(device),
          conv1.gradient(device),
          device.download(norm_backward.dgamma, in.gamma.size()),
          device.download(norm_backward.dbeta, in.gamma.size()),
          from_layout(kImage, layout, device.download(dimage, in.image.size()))};
}

TEST(NormalizationUnit, ChainAgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases) {
    const Inputs in(c);
    const Outputs expected = run(reference, c, Layout::nhwc, in);
    for (auto& [name, backend] : tested_backends()) {
      SCOPED_TRACE(std::string(name) + ", " + c.name);
      const Outputs actual = run(*backend, c, c.layout, in);
      // Two convolutions of 144 and 288 terms, typical error sqrt(n) * 2^-24 = 1e-6 of the greatest each, forward and
      // backward, and the normalisation between them scales neither up: 1e-5 is a few times the sum. (A ReLU that
      // falls to the other side would be an error of 1e-1; no element is that near its kink here.)
      EXPECT_TRUE(near(actual.y, expected.y, 1e-5)) << "y";
      EXPECT_TRUE(near(actual.dweight2, expected.dweight2, 1e-5)) << "dweight of the second convolution";
      EXPECT_TRUE(near(actual.dweight1, expected.dweight1, 1e-5)) << "dweight of the first convolution";
      EXPECT_TRUE(near(actual.dgamma, expected.dgamma, 1e-5)) << "dgamma";
      EXPECT_TRUE(near(actual.dbeta, expected.dbeta, 1e-5)) << "dbeta";
      EXPECT_TRUE(near(actual.dimage, expected.dimage, 1e-5)) << "gradient of the image";
    }
  }
}

/// The chain in double, through the batch's statistics: what autograd would differentiate.
class DoubleChain {
 public:
  explicit DoubleChain(const Case& c)
      : c_(c), in_(c), image(to_double(in_.image)), weight1(to_double(in_.weight1)), weight2(to_double(in_.weight2)),
        gamma(to_double(in_.gamma)), beta(to_double(in_.beta)), residual(to_double(in_.residual)),
        residual_scale_bias(to_double(in_.residual_scale_bias)) {}

  double loss() {
    Conv2dDescription d2 = second_conv(c_, Layout::nhwc);
    d2.normalization->store = true;
    std::vector<double> middle(residual.size()), z(residual.size()), y(in_.dy.size());
    std::vector<double> statistics(2 * gamma.size()), scale_bias(2 * gamma.size()), mean(2 * gamma.size());
    reference::conv2d_forward<double>(
        first_conv(Layout::nhwc), {image.data(), weight1.data(), middle.data(), statistics.data(), {}});
    reference::batch_norm_finalize<double>(
        norm(Layout::nhwc), {statistics.data(), gamma.data(), beta.data(), scale_bias.data(), mean.data(), nullptr});
    reference::conv2d_forward<double>(
        d2, {middle.data(), weight2.data(), y.data(), nullptr,
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
    // The gradients were stored in fp32 at every border between ops: some 1e-6 of the greatest.
    EXPECT_TRUE(gradient_matches(chain.image, to_double(gradients.dimage), loss, 1e-5)) << "image";
    EXPECT_TRUE(gradient_matches(chain.weight1, to_double(gradients.dweight1), loss, 1e-5)) << "first weights";
    EXPECT_TRUE(gradient_matches(chain.weight2, to_double(gradients.dweight2), loss, 1e-5)) << "second weights";
    EXPECT_TRUE(gradient_matches(chain.gamma, to_double(gradients.dgamma), loss, 1e-5)) << "gamma";
    EXPECT_TRUE(gradient_matches(chain.beta, to_double(gradients.dbeta), loss, 1e-5)) << "beta";
  }
}

}  // namespace
}  // namespace lockstep::test
