// Softmax cross entropy of the backends, compared with the reference; the reference, compared with finite differences.
#include "test/reference/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/ops/cross_entropy.h"
#include "test/reference/backend.h"
#include "test/support/clip_coefficient.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/finite_difference.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

struct Case {
  std::int64_t rows, classes;
  float label_smoothing;
  float spread = 1;       // of the logits
  int ignored_every = 0;  // one in this many labels is negative; 0: none
  bool has_weights = false;
  float label_weight = 1;  // below 1: a second label has the rest
};

const Case kCases[] = {{32, 10, 0},
                       {1, 10, 0.1f},
                       {7, 1000, 0.1f, 3},
                       {5, 13, 0, 20, 3},
                       {16, 17, 0.3f, 1, 2},
                       {3, 1, 0},
                       {2, 2, 0.1f, 100},
                       {4, 10, 0.1f, 1, 1},
                       {37, 16, 0.1f},
                       {5, 2500, 0.2f, 2, 4},
                       {3, 4099, 0, 2},
                       {37, 10, 0, 1, 3, true},
                       {32, 16, 0.1f, 1, 0, true},
                       {5, 2500, 0.2f, 2, 4, true},
                       {7, 10, 0, 1, 3, false, 0.75f},
                       {16, 17, 0.1f, 1, 0, false, 0.25f},
                       {5, 2500, 0.1f, 2, 4, false, 0.5f},
                       {9, 16, 0.1f, 1, 4, true, 0.25f}};

/// Weights of the classes: 0, 0.25, 0.5, ... 1.5, repeated. Empty if the case has none.
std::vector<float> weights_of(const Case& c) {
  std::vector<float> weights;
  for (std::int64_t k = 0; c.has_weights && k < c.classes; ++k) weights.push_back(0.25f * static_cast<float>(k % 7));
  return weights;
}

SoftmaxCrossEntropyDescription describe(const Case& c) {
  SoftmaxCrossEntropyDescription d;
  d.rows = c.rows;
  d.classes = c.classes;
  d.label_smoothing = c.label_smoothing;
  if (c.has_weights)
    for (const float weight : weights_of(c)) d.class_weight_sum += weight;
  return d;
}

struct Inputs {
  explicit Inputs(const Case& c)
      : logits(random_normal(c.rows * c.classes, 1)), class_weights(weights_of(c)), label_weight(c.label_weight) {
    for (float& logit : logits) logit *= c.spread;
    for (std::int64_t row = 0; row < c.rows; ++row) {
      const bool ignored = c.ignored_every > 0 && row % c.ignored_every == 0;
      labels.push_back(ignored ? -1 : static_cast<std::int32_t>((row * 7 + 3) % c.classes));
      if (c.label_weight < 1) other_labels.push_back(static_cast<std::int32_t>((row * 5 + 1) % c.classes));
      // Every third row is predicted correctly, so that `correct` counts something.
      if (row % 3 == 0 && !ignored) logits[static_cast<std::size_t>(row * c.classes + labels.back())] += 5 * c.spread;
    }
  }
  std::vector<float> logits;
  std::vector<std::int32_t> labels;
  std::vector<float> class_weights;        // empty: no weights
  std::vector<std::int32_t> other_labels;  // empty: rows have one label
  float label_weight;
  MixedLabels mixed() const {
    return other_labels.empty() ? MixedLabels{} : MixedLabels{other_labels.data(), &label_weight};
  }
  const float* weights() const { return class_weights.empty() ? nullptr : class_weights.data(); }
};

struct Outputs {
  LossSums sums;
  std::vector<float> dlogits;
};

constexpr float kLossWeight = 1.0f / 48;

Outputs run(Backend& backend, const SoftmaxCrossEntropyDescription& d, const Inputs& in, GradientMode mode,
            float loss_scale = 0) {
  Device device(backend);
  const auto op = backend.make(d);
  const OpMemory memory = device.op_memory(op->memory_requirements());
  SoftmaxCrossEntropy::Forward forward;
  forward.logits = device.upload_as(d.dtype, in.logits);
  forward.labels = device.upload(in.labels);
  forward.sums = mode == GradientMode::accumulate ? device.upload(std::vector<LossSums>{{100, 10, 1, 0.5}})
                                                  : device.garbage<LossSums>(1);
  forward.sums_mode = mode;
  if (in.weights()) forward.class_weights = device.upload(in.class_weights);
  if (!in.other_labels.empty())
    forward.mixed = {device.upload(in.other_labels), device.upload(std::vector<float>{in.label_weight})};
  op->forward(forward, memory, device.stream());
  SoftmaxCrossEntropy::Backward backward;
  backward.mixed = forward.mixed;
  backward.logits = forward.logits;
  backward.labels = forward.labels;
  backward.class_weights = forward.class_weights;
  StepScalars scalars;
  scalars.loss_weight = kLossWeight;
  backward.scalars = device.upload(std::vector<StepScalars>{scalars});
  if (loss_scale > 0) backward.loss_scale = device.upload(std::vector<LossScale>{{.scale = loss_scale}});
  void* dlogits = device.garbage_as(d.dtype, in.logits.size());
  backward.dlogits = dlogits;
  op->backward(backward, memory, device.stream());
  return {device.download(forward.sums, 1)[0], device.download_as(d.dtype, dlogits, in.logits.size())};
}

TEST(SoftmaxCrossEntropy, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases)
    for (GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate}) {
      const Inputs in(c);
      const Outputs expected = run(reference, describe(c), in, mode);
      for (auto& [name, backend] : tested_backends()) {
        SCOPED_TRACE(std::string(name) + ", " + Shape({c.rows, c.classes}).text() + ", " + text(mode));
        const Outputs actual = run(*backend, describe(c), in, mode);
        EXPECT_EQ(actual.sums.correct, expected.sums.correct);
        EXPECT_EQ(actual.sums.count, expected.sums.count);
        EXPECT_EQ(actual.sums.weight, expected.sums.weight);  // weights are multiples of 1/4
        // In each row, logits - maximum is rounded (a relative error of 2^-24 of up to 6 spreads), exp and log have
        // errors of one or two ulp, and with smoothing all classes add up.
        const double scale = static_cast<double>(c.rows) * (6.0 * c.spread + std::log(static_cast<double>(c.classes)));
        EXPECT_NEAR(actual.sums.loss, expected.sums.loss, 4 * kRoundoff * scale + 1e-12);
        // softmax and q are at most 1; exp of a logit difference of up to 10 spreads has an error of that many
        // roundings.
        for (std::size_t i = 0; i < expected.dlogits.size(); ++i)
          ASSERT_NEAR(actual.dlogits[i], expected.dlogits[i], kLossWeight * kRoundoff * (8 + 10.0 * c.spread)) << i;
      }
    }
}

/// With 16-bit logits; gradients are rounded once to their type.
TEST(SoftmaxCrossEntropy, InBf16AndFp16) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases)
    for (const DType dtype : {DType::bf16, DType::fp16}) {
      Inputs in(c);
      in.logits = rounded_to(dtype, in.logits);
      SoftmaxCrossEntropyDescription d = describe(c);
      const Outputs expected = run(reference, d, in, GradientMode::overwrite);
      d.dtype = dtype;
      for (auto& [name, backend] : tested_backends()) {
        if (backend->name() == "cpu") continue;  // its loss reads fp32
        SCOPED_TRACE(std::string(name) + ", " + Shape({c.rows, c.classes}).text());
        const Outputs actual = run(*backend, d, in, GradientMode::overwrite);
        EXPECT_EQ(actual.sums.correct, expected.sums.correct);
        EXPECT_NEAR(actual.sums.loss, expected.sums.loss, 1e-5 * std::max(1.0, expected.sums.loss));
        const double roundoff = dtype == DType::bf16 ? kBf16Roundoff : kFp16Roundoff;
        for (std::size_t i = 0; i < expected.dlogits.size(); ++i)  // the smallest fp16 numbers are 2^-24 apart
          ASSERT_NEAR(
              actual.dlogits[i], expected.dlogits[i],
              roundoff * std::abs(expected.dlogits[i]) + 0x1p-25 + kLossWeight * kRoundoff * (8 + 10.0 * c.spread))
              << i;
      }
    }
}

/// The gradient of an ignored row is zero, and if all rows are ignored nothing is counted.
TEST(SoftmaxCrossEntropy, IgnoredLabels) {
  const Case& c = kCases[7];
  for (auto& [name, backend] : tested_backends()) {
    const Outputs out = run(*backend, describe(c), Inputs(c), GradientMode::overwrite);
    EXPECT_EQ(out.sums.loss, 0.0) << name;
    EXPECT_EQ(out.sums.count, 0.0) << name;
    EXPECT_EQ(out.sums.weight, 0.0) << name;
    EXPECT_EQ(out.sums.correct, 0.0) << name;
    for (float d : out.dlogits) EXPECT_EQ(d, 0.0f) << name;
  }
}

/// A power of two changes only the exponent, unless the result is denormal; the loss is not scaled.
TEST(SoftmaxCrossEntropy, LossScale) {
  for (const Case& c : kCases)
    for (auto& [name, backend] : tested_backends()) {
      const Outputs plain = run(*backend, describe(c), Inputs(c), GradientMode::overwrite);
      const Outputs scaled = run(*backend, describe(c), Inputs(c), GradientMode::overwrite, 65536);
      EXPECT_EQ(scaled.sums.loss, plain.sums.loss) << name;
      for (std::size_t i = 0; i < plain.dlogits.size(); ++i) {
        if (std::fpclassify(plain.dlogits[i]) == FP_SUBNORMAL) continue;
        ASSERT_EQ(scaled.dlogits[i], 65536 * plain.dlogits[i]) << name << ", " << i;
      }
    }
}

/// Among equal logits, the first counts as the prediction.
TEST(SoftmaxCrossEntropy, TiesGoToTheFirst) {
  const Case c{3, 37, 0};
  Inputs in(c);
  std::fill(in.logits.begin(), in.logits.end(), 0.5f);
  in.labels = {0, 1, 36};
  for (auto& [name, backend] : tested_backends())
    EXPECT_EQ(run(*backend, describe(c), in, GradientMode::overwrite).sums.correct, 1.0) << name;
}

/// Logits of 1e4 overflow exp unless the maximum is subtracted first.
TEST(SoftmaxCrossEntropy, LargeLogits) {
  const Case c{2, 3, 0};
  Inputs in(c);
  in.logits = {10000, 0, -10000, -10000, -10000, -9999};
  in.labels = {0, 2};
  for (auto& [name, backend] : tested_backends()) {
    const Outputs out = run(*backend, describe(c), in, GradientMode::overwrite);
    // Row 0 costs nothing, row 1 log(1 + 2/e) = 0.5514447; a loss of order 1 in fp32.
    EXPECT_NEAR(out.sums.loss, 0.551444713932051, 1e-6) << name;
    EXPECT_EQ(out.sums.correct, 2.0) << name;
    for (float d : out.dlogits) EXPECT_FALSE(std::isnan(d)) << name;
  }
}

TEST(SoftmaxCrossEntropy, AgreesWithFiniteDifferences) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(Shape({c.rows, c.classes}).text());
    const Inputs in(c);
    std::vector<double> logits = to_double(in.logits), dlogits(logits.size());
    reference::softmax_cross_entropy_backward(describe(c), logits.data(), in.labels.data(), in.weights(), 1.0,
                                              dlogits.data(), in.mixed());
    EXPECT_TRUE(gradient_matches(logits, dlogits, [&] {
      return reference::softmax_cross_entropy_forward(describe(c), logits.data(), in.labels.data(), in.weights(),
                                                      in.mixed())
          .loss;
    }));
  }
}

/// torch.nn.CrossEntropyLoss(weight=w, label_smoothing=e): (1-e) * sum w_y nll / sum w_y + e/K * sum_k -w_k log p_k /
/// sum w_y (cross_entropy_loss_label_smoothing in aten/src/ATen/native/LossNLL.cpp). The numbers were computed in
/// Python.
TEST(SoftmaxCrossEntropy, ClassWeightsAreThoseOfPyTorch) {
  const std::vector<double> logits{1, 2, 0.5, -1, 0, 1, 0.25, 0.25, -2};
  const std::vector<std::int32_t> labels{0, 2, 1};
  const std::vector<float> weights{0.5f, 2, 1.25f};
  SoftmaxCrossEntropyDescription d{.rows = 3, .classes = 3, .class_weight_sum = 3.75};
  for (const auto& [smoothing, expected] : {std::pair{0.0f, 0.7281872151096368}, {0.1f, 0.7820289331457233}}) {
    d.label_smoothing = smoothing;
    const LossSums sums = reference::softmax_cross_entropy_forward(d, logits.data(), labels.data(), weights.data());
    EXPECT_EQ(sums.weight, 3.75);
    EXPECT_NEAR(sums.loss / sums.weight, expected, 1e-7);
  }
}

/// The gradient that an update uses, dlogits times the coefficient of ClipNorm, is that of the mean over the labelled
/// samples, whatever number of samples the weight 1 / 48 assumes.
TEST(SoftmaxCrossEntropy, WithClipNormItIsTheGradientOfTheMeanLoss) {
  reference::ReferenceBackend reference;
  std::vector<Backend*> backends{&reference};
  for (auto& [name, backend] : tested_backends()) backends.push_back(backend.get());
  for (const Case& c :
       {kCases[3], kCases[4], kCases[9], kCases[10], kCases[0], kCases[11], kCases[12], kCases[14], kCases[17]})
    for (Backend* backend : backends) {
      SCOPED_TRACE(backend->name() + ", " + Shape({c.rows, c.classes}).text());
      const Inputs in(c);
      const Outputs out = run(*backend, describe(c), in, GradientMode::overwrite);
      const double coefficient = clip_coefficient(*backend, out.dlogits, out.sums, /*nominal_count=*/48);
      std::vector<double> logits = to_double(in.logits), gradient;
      for (const float d : out.dlogits) gradient.push_back(coefficient * d);
      const auto mean_loss = [&] {
        const LossSums sums = reference::softmax_cross_entropy_forward(describe(c), logits.data(), in.labels.data(),
                                                                       in.weights(), in.mixed());
        return sums.loss / sums.weight;
      };
      EXPECT_TRUE(gradient_matches(logits, gradient, mean_loss, 2e-6));  // rounding to fp32, and of the exponentials
    }
}

}  // namespace
}  // namespace lockstep::test
