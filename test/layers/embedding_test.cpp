// The embedding layer, alone and sharing its weight with the last linear layer (tied embeddings).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "test/graph/small_graph.h"
#include "test/reference/backend.h"

namespace lockstep::layers {
namespace {

using test::SmallGraph;

constexpr std::int64_t kBatch = 2, kSequence = 7, kWidth = 16, kVocabulary = 11;
const Shape kInput{kBatch, kSequence, kWidth};
/// 3 occurs in both samples, 9 and 10 nowhere, and -1 has no row.
const std::vector<std::int32_t> kIds{3, 0, 3, 1, -1, 8, 3, 2, 3, 4, 4, 5, 6, 7};

/// The input is added to the embedding, so that the graph has an input.
struct Model {
  Model(Backend& backend, bool is_tied, DType dtype = DType::fp32, std::vector<std::int32_t> values = kIds)
      : graph(
            backend, kInput,
            [&](Graph& g, ActivationId x) {
              ids = g.memory().add("ids", values.size() * sizeof(std::int32_t), true);
              ActivationId y =
                  add(g, x,
                      embedding(g, ids, "embed", {.sequence = kSequence, .vocabulary = kVocabulary, .width = kWidth}));
              if (!is_tied) return y;
              y = rms_norm(g, y, "norm", {});
              return linear(g, y, "head", {.out_features = kVocabulary, .bias = false, .weight = "embed.weight"});
            },
            dtype) {
    std::memcpy(graph.graph().tensor(ids), values.data(), values.size() * sizeof(std::int32_t));
  }
  graph::TensorId ids = graph::kNoTensor;
  SmallGraph graph;
};

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

TEST(EmbeddingLayer, TakesTheRowOfEachId) {
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  Model model(*cpu, false);
  model.graph.run();
  const std::vector<float> weight = model.graph.get("embed.weight"), gradient = model.graph.gradient("embed.weight");
  const std::vector<float>&x = model.graph.input(), &y = model.graph.output(), r = model.graph.output_gradient();
  std::vector<float> expected(weight.size());
  for (std::size_t i = 0; i < kIds.size(); ++i)
    for (std::size_t c = 0; c < kWidth; ++c) {
      const std::size_t at = i * kWidth + c;
      if (kIds[i] < 0) {
        EXPECT_EQ(y[at], x[at]);
        continue;
      }
      const std::size_t of_weight = static_cast<std::size_t>(kIds[i]) * kWidth + c;
      EXPECT_EQ(y[at], x[at] + weight[of_weight]);
      expected[of_weight] += r[at];
    }
  EXPECT_EQ(gradient, expected);
  EXPECT_EQ(std::ranges::count(gradient, 0.0f), 2 * kWidth) << "of the ids 9 and 10";
}

/// As in test/layers/decoder_test.cpp: the error of the difference is about 1e-4, and both layers contribute to the
/// slope.
TEST(EmbeddingLayer, TheGradientOfATiedWeightAgreesWithFiniteDifferences) {
  const auto backend = reference::make_reference_backend();
  Model model(*backend, true);
  model.graph.run();
  const std::vector<float> values = model.graph.get("embed.weight"), gradient = model.graph.gradient("embed.weight");
  for (std::uint32_t stream = 300; stream < 305; ++stream) {
    const std::vector<float> direction = test::random_normal(kVocabulary * kWidth, stream);
    double slope = 0, length = 0;
    for (const float d : direction) length += double{d} * d;
    for (std::size_t i = 0; i < direction.size(); ++i) slope += gradient[i] * direction[i] / std::sqrt(length);
    const auto loss_at = [&](double step) {
      std::vector<float> moved = values;
      for (std::size_t i = 0; i < moved.size(); ++i)
        moved[i] += static_cast<float>(step * direction[i] / std::sqrt(length));
      model.graph.set("embed.weight", moved);
      return model.graph.forward();
    };
    constexpr double kStep = 1e-2;
    EXPECT_NEAR(slope, (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep), 2e-3 * std::max(1.0, std::abs(slope)));
  }
}

TEST(EmbeddingLayer, TheCpuAgreesWithTheReferenceWhenTied) {
  const auto reference = reference::make_reference_backend();
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  Model exact(*reference, true), fp32(*cpu, true), bf16(*cpu, true, DType::bf16);
  EXPECT_EQ(exact.graph.run(), (std::vector<std::string>{"norm.weight", "embed.weight"}));
  EXPECT_EQ(fp32.graph.run(), (std::vector<std::string>{"norm.weight", "embed.weight"}));
  bf16.graph.run();
  EXPECT_LT(distance(fp32.graph.output(), exact.graph.output()), 1e-6);
  EXPECT_LT(distance(fp32.graph.gradient("embed.weight"), exact.graph.gradient("embed.weight")), 1e-6);
  // bf16 has 8 bits: each activation and weight is rounded by 2^-9, and some of them follow each other.
  EXPECT_LT(distance(bf16.graph.output(), exact.graph.output()), 0.02);
  EXPECT_LT(distance(bf16.graph.gradient("embed.weight"), exact.graph.gradient("embed.weight")), 0.02);
}

/// The head overwrites the gradient first and the embedding adds to it; a second micro-batch gives the sum of both.
TEST(EmbeddingLayer, AccumulatesOverMicroBatches) {
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  for (const bool is_tied : {false, true}) {
    Model model(*cpu, is_tied);
    model.graph.run(GradientMode::overwrite);
    const std::vector<float> once = model.graph.gradient("embed.weight");
    model.graph.run(GradientMode::accumulate);
    std::vector<float> twice = once;
    for (float& g : twice) g *= 2;
    EXPECT_LT(distance(model.graph.gradient("embed.weight"), twice), 1e-6);
  }
}

}  // namespace
}  // namespace lockstep::layers
