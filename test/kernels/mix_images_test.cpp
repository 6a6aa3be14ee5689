// Mixup and cutmix of the backends, compared with the reference; the reference, compared with torchvision's MixUp and
// CutMix and PyTorch's loss of mixed labels (test/golden/augment.json).
#include "test/reference/mix_images.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "layers/layers.h"
#include "lockstep/ops/mix_images.h"
#include "test/reference/backend.h"
#include "test/reference/cross_entropy.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

const Shape kCases[] = {{3, 32, 32, 3}, {2, 7, 5, 3}, {1, 5, 9, 1}, {4, 6, 6, 3}, {90, 16, 8, 2}, {5, 3, 3, 5}};

enum class Kind { mixup, cutmix, both };

struct Inputs {
  std::vector<float> x;
  std::vector<std::int32_t> labels;
  std::vector<std::uint32_t> sample_ids;
  std::vector<float> mixup, cutmix;
};

Inputs inputs(const Shape& shape, Kind kind, std::uint32_t first_sample = 17) {
  Inputs in{.x = random_normal(shape.n_elements(), 1), .labels = {}, .sample_ids = {}, .mixup = {}, .cutmix = {}};
  for (std::int64_t n = 0; n < shape[0]; ++n) {
    in.labels.push_back(n % 4 == 2 ? -1 : static_cast<std::int32_t>(7 * n % 10));
    in.sample_ids.push_back(static_cast<std::uint32_t>(1000003 * n) + first_sample);
  }
  if (kind != Kind::cutmix) in.mixup = layers::beta_quantiles(0.2);
  if (kind != Kind::mixup) in.cutmix = layers::beta_quantiles(1);
  return in;
}

struct Outputs {
  std::vector<float> y;
  std::vector<std::int32_t> partner_labels;
  float weight = 0;
};

Outputs run(Backend& backend, const Shape& shape, const Inputs& in, std::uint32_t epoch, DType dtype = DType::fp32) {
  Device device(backend);
  const auto op = backend.make(MixImagesDescription{.x = shape, .dtype = dtype, .seed = 11});
  StepScalars scalars;
  scalars.epoch = epoch;
  MixImages::Forward args;
  args.x = device.upload_as(dtype, in.x);
  args.labels = device.upload(in.labels);
  args.sample_ids = device.upload(in.sample_ids);
  if (!in.mixup.empty()) args.mixup_quantiles = device.upload(in.mixup);
  if (!in.cutmix.empty()) args.cutmix_quantiles = device.upload(in.cutmix);
  args.scalars = device.upload(std::vector<StepScalars>{scalars});
  args.y = device.garbage_as(dtype, in.x.size());
  args.partner_labels = device.garbage<std::int32_t>(in.labels.size());
  args.weight = device.garbage<float>(1);
  op->forward(args, device.op_memory(op->memory_requirements()), device.stream());
  return {device.download_as(dtype, args.y, in.x.size()), device.download(args.partner_labels, in.labels.size()),
          device.download(args.weight, 1)[0]};
}

TEST(MixImages, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const Shape& shape : kCases)
    for (const Kind kind : {Kind::mixup, Kind::cutmix, Kind::both})
      for (std::uint32_t epoch = 0; epoch < 6; ++epoch) {
        const Inputs in = inputs(shape, kind);
        const Outputs expected = run(reference, shape, in, epoch);
        for (auto& [name, backend] : tested_backends()) {
          SCOPED_TRACE(std::string(name) + ", " + shape.text() + ", epoch " + std::to_string(epoch));
          const Outputs actual = run(*backend, shape, in, epoch);
          EXPECT_EQ(actual.partner_labels, expected.partner_labels);
          EXPECT_EQ(actual.weight, expected.weight) << "what is drawn has the same bits everywhere";
          // 1 - w, two products and a sum are rounded, for normally distributed numbers up to 5.
          for (std::size_t i = 0; i < expected.y.size(); ++i)
            ASSERT_NEAR(actual.y[i], expected.y[i], 4 * kRoundoff * 5) << i;
        }
      }
}

/// With 16 bits, the result is that of fp32, rounded once.
TEST(MixImages, InBf16AndFp16) {
  for (const Shape& shape : kCases)
    for (const Kind kind : {Kind::mixup, Kind::cutmix})
      for (const DType dtype : {DType::bf16, DType::fp16}) {
        Inputs in = inputs(shape, kind);
        in.x = rounded_to(dtype, in.x);
        for (auto& [name, backend] : tested_backends()) {
          if (dtype == DType::fp16 && backend->name() == "cpu") continue;
          const auto expected = rounded_to(dtype, run(*backend, shape, in, 5).y);
          EXPECT_EQ(run(*backend, shape, in, 5, dtype).y, expected) << name << ", " << shape.text();
        }
      }
}

/// Each kind is drawn about half the time, and the weight of a batch depends only on its first sample.
TEST(MixImages, BothAreDrawn) {
  const Shape shape{2, 9, 7, 1};
  for (auto& [name, backend] : tested_backends()) {
    int n_cut = 0;
    std::set<float> weights;
    for (std::uint32_t sample = 0; sample < 60; ++sample) {
      Inputs in = inputs(shape, Kind::both, sample);
      std::fill(in.x.begin(), in.x.begin() + 63, 0.0f);
      std::fill(in.x.begin() + 63, in.x.end(), 1.0f);
      const Outputs out = run(*backend, shape, in, 3);
      weights.insert(out.weight);
      // Image 1 is all ones and its partner all zeros, so the mean of what is left of image 1 is the weight.
      double sum = 0;
      bool is_cut = true;
      for (std::size_t i = 63; i < 126; ++i) {
        sum += out.y[i];
        is_cut = is_cut && (out.y[i] == 0 || out.y[i] == 1);
      }
      EXPECT_NEAR(sum / 63, out.weight, 1e-6) << name;
      n_cut += is_cut ? 1 : 0;
      in.sample_ids[1] += 5;
      EXPECT_EQ(run(*backend, shape, in, 3).weight, out.weight);
    }
    EXPECT_GT(n_cut, 15) << name;
    EXPECT_LT(n_cut, 50) << name;  // with a weight near 0 or 1, mixup looks like a cut
    EXPECT_GT(weights.size(), 30u) << name;
  }
}

nlohmann::json golden() { return nlohmann::json::parse(std::ifstream("test/golden/augment.json")); }

TEST(MixImages, CutsTheRectanglesOfTorchvision) {
  const nlohmann::json all = golden().at("cutmix");
  EXPECT_GT(all.size(), 30u);
  for (const nlohmann::json& c : all) {
    SCOPED_TRACE(c.dump());
    const int height = c["height"], width = c["width"];
    const reference::Rectangle cut = reference::cutmix_rectangle(c["weight"], c["row"], c["column"], height, width);
    const int area = (cut.bottom - cut.top) * (cut.right - cut.left);
    if (area > 0) {
      EXPECT_EQ(nlohmann::json({cut.top, cut.bottom, cut.left, cut.right}), c["box"]);
    }
    EXPECT_EQ(area == 0, c["box"] == nlohmann::json({0, 0, 0, 0}));
    EXPECT_NEAR(1.0 - double{1} * area / (height * width), c["label_weight"].get<double>(), 1e-6);
  }
}

/// A table that contains only one value makes the weight that of the golden file.
TEST(MixImages, MixesAndLosesAsPyTorch) {
  const nlohmann::json all = golden().at("mixup");
  EXPECT_EQ(all.size(), 4u);
  for (const nlohmann::json& c : all) {
    Inputs in;
    in.x = c["images"].get<std::vector<float>>();
    in.labels = c["labels"].get<std::vector<std::int32_t>>();
    in.sample_ids = {1, 2, 3, 4};
    in.mixup.assign(kBetaQuantiles, c["weight"].get<float>());
    const auto logits = c["logits"].get<std::vector<double>>(), gradients = c["dlogits"].get<std::vector<double>>();
    const auto mixed = c["mixed"].get<std::vector<float>>();
    for (auto& [name, backend] : tested_backends()) {
      const Outputs out = run(*backend, {4, 2, 3, 3}, in, 0);
      EXPECT_EQ(out.weight, in.mixup[0]);
      EXPECT_TRUE(near(out.y, mixed, 4 * kRoundoff * 5)) << name;
      const MixedLabels labels{.labels = out.partner_labels.data(), .weight = &out.weight};
      const SoftmaxCrossEntropyDescription d{.rows = 4, .classes = 5, .label_smoothing = c["label_smoothing"]};
      const LossSums sums =
          reference::softmax_cross_entropy_forward(d, logits.data(), in.labels.data(), nullptr, labels);
      EXPECT_NEAR(sums.loss, c["loss"].get<double>(), 1e-6) << "the smoothing is a float";
      EXPECT_EQ(sums.weight, 4.0);
      std::vector<double> dlogits(logits.size());
      reference::softmax_cross_entropy_backward(d, logits.data(), in.labels.data(), nullptr, 1.0, dlogits.data(),
                                                labels);
      for (std::size_t i = 0; i < dlogits.size(); ++i) ASSERT_NEAR(dlogits[i], gradients[i], 1e-7) << i;
    }
  }
}

}  // namespace
}  // namespace lockstep::test
