// The layer that computes the last matmul and the loss in chunks: compared with linear() and cross_entropy(), alone and
// with the weight of an embedding.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "lockstep/error.h"
#include "test/graph/small_graph.h"
#include "test/reference/backend.h"

namespace lockstep::layers {
namespace {

using test::SmallGraph;

constexpr std::int64_t kBatch = 2, kSequence = 7, kWidth = 16, kVocabulary = 11;
constexpr std::size_t kPositions = kBatch * kSequence;
const Shape kInput{kBatch, kSequence, kWidth};
const std::vector<std::int32_t> kIds{3, 0, 3, 1, -1, 8, 3, 2, 3, 4, 4, 5, 6, 7};
const std::vector<std::int32_t> kTargets{0, 3, 1, 9, 8, 3, -1, 3, 4, 4, 5, 6, 7, -1};

struct Options {
  bool is_fused = true;
  bool is_tied = true;
  DType dtype = DType::fp32;
  bool recomputes = false;
};

/// The input plus an embedding, a linear layer, and the head. The probe reads the sum, whose gradient is that of the
/// probe plus that of the head.
struct Model {
  Model(Backend& backend, const Options& options)
      : graph(
            backend, kInput, [&](Graph& g, ActivationId x) { return build(g, x, options); }, options.dtype) {
    set(ids, kIds);
    set(targets, kTargets);
    graph.scalars().loss_weight = 1.0f / 12;
  }

  ActivationId build(Graph& g, ActivationId x, const Options& options) {
    const auto tensor = [&](const char* name) { return g.memory().add(name, kPositions * sizeof(float), true); };
    ids = tensor("ids");
    targets = tensor("targets");
    losses = tensor("losses");
    sums = g.add_exchange(sizeof(LossSums));
    const int first = g.n_nodes();
    const ActivationId y =
        add(g, x, embedding(g, ids, "embed", {.sequence = kSequence, .vocabulary = kVocabulary, .width = kWidth}));
    const ActivationId z = rms_norm(g, linear(g, y, "middle", {.out_features = kWidth}), "norm", {});
    if (options.recomputes) g.recompute(first, g.n_nodes() - 1);
    const std::string weight = options.is_tied ? "embed.weight" : "";
    if (options.is_fused)
      linear_cross_entropy(g, z, "head", targets, sums,
                           {.vocabulary = kVocabulary, .weight = weight, .losses = losses});
    else
      cross_entropy(g, linear(g, z, "head", {.out_features = kVocabulary, .bias = false, .weight = weight}), targets,
                    sums);
    return y;
  }

  void set(graph::TensorId id, const std::vector<std::int32_t>& values) {
    std::memcpy(graph.graph().tensor(id), values.data(), values.size() * sizeof(std::int32_t));
  }
  LossSums loss_sums() {
    LossSums out;
    std::memcpy(&out, graph.graph().bindings().exchange + sums, sizeof out);
    return out;
  }
  std::vector<float> loss_of_rows() {
    const float* const values = graph.graph().tensor<float>(losses);
    return {values, values + kPositions};
  }

  graph::TensorId ids = graph::kNoTensor, targets = graph::kNoTensor, losses = graph::kNoTensor;
  std::size_t sums = 0;
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

void expect_same(Model& actual, Model& expected, double of_loss, double of_gradients) {
  EXPECT_NEAR(actual.loss_sums().loss, expected.loss_sums().loss, of_loss * expected.loss_sums().loss);
  EXPECT_EQ(actual.loss_sums().count, 12);
  EXPECT_EQ(actual.loss_sums().weight, 12);
  for (const graph::Parameter& p : expected.graph.table().parameters())
    EXPECT_LT(distance(actual.graph.gradient(p.name), expected.graph.gradient(p.name)), of_gradients) << p.name;
}

TEST(LinearCrossEntropyLayer, IsLinearAndCrossEntropy) {
  const auto reference = reference::make_reference_backend();
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  for (const bool is_tied : {false, true}) {
    Model expected(*reference, {.is_fused = false, .is_tied = is_tied}), exact(*reference, {.is_tied = is_tied});
    Model fp32(*cpu, {.is_tied = is_tied}), bf16(*cpu, {.is_tied = is_tied, .dtype = DType::bf16});
    const std::vector<std::string> finished = expected.graph.run();
    EXPECT_EQ(exact.graph.run(), finished);
    EXPECT_EQ(fp32.graph.run(), finished);
    bf16.graph.run();
    expect_same(exact, expected, 1e-6, 1e-6);
    expect_same(fp32, expected, 1e-6, 1e-5);
    // bf16 has 8 bits: each activation and weight is rounded by 2^-9, and some of them follow each other.
    expect_same(bf16, expected, 0.01, 0.05);
    EXPECT_EQ(fp32.loss_sums().correct, expected.loss_sums().correct);
    double sum = 0;
    for (const float loss : fp32.loss_of_rows()) sum += loss;
    EXPECT_NEAR(sum, fp32.loss_sums().loss, 1e-5);
    EXPECT_EQ(fp32.loss_of_rows()[6], 0.0f);
  }
}

TEST(LinearCrossEntropyLayer, AccumulatesOverMicroBatches) {
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  for (const bool is_tied : {false, true}) {
    Model model(*cpu, {.is_tied = is_tied});
    model.graph.run(GradientMode::overwrite);
    const LossSums once = model.loss_sums();
    std::vector<float> twice = model.graph.gradient_arena();
    for (float& g : twice) g *= 2;
    model.graph.run(GradientMode::accumulate);
    EXPECT_LT(distance(model.graph.gradient_arena(), twice), 1e-6);
    EXPECT_NEAR(model.loss_sums().loss, 2 * once.loss, 1e-12 * once.loss);  // the order of the additions differs
    EXPECT_EQ(model.loss_sums().count, 2 * once.count);
  }
}

TEST(LinearCrossEntropyLayer, RecomputingWhatComesBeforeGivesTheSameBits) {
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  Model kept(*cpu, {}), recomputed(*cpu, {.recomputes = true});
  for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate}) {
    EXPECT_EQ(kept.graph.run(mode), recomputed.graph.run(mode));
    EXPECT_EQ(kept.graph.gradient_arena(), recomputed.graph.gradient_arena());
  }
}

/// The gradients of x and of the weight are complete in the forward pass, so nothing may overwrite them afterwards.
TEST(LinearCrossEntropyLayer, MustBeTheLastReader) {
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  const auto build = [](bool shares_weight) {
    return [=](Graph& g, ActivationId x) {
      const graph::TensorId targets = g.memory().add("targets", kPositions * sizeof(std::int32_t), true);
      const ActivationId y = linear(g, x, "first", {.out_features = kWidth});
      linear_cross_entropy(g, shares_weight ? linear(g, y, "own", {.out_features = kWidth}) : y, "head", targets,
                           g.add_exchange(sizeof(LossSums)), {.vocabulary = kVocabulary});
      return linear(g, y, "later",
                    {.out_features = kVocabulary, .bias = false, .weight = shares_weight ? "head.weight" : ""});
    };
  };
  EXPECT_THROW(SmallGraph(*cpu, kInput, build(false)), Error);
  EXPECT_THROW(SmallGraph(*cpu, kInput, build(true)), Error);
}

}  // namespace
}  // namespace lockstep::layers
