// The rotary layer between two linear layers, with and without normalised queries and keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "test/graph/small_graph.h"
#include "test/reference/backend.h"

namespace lockstep::layers {
namespace {

using test::SmallGraph;

constexpr std::int64_t kBatch = 2, kSequence = 5, kWidth = 12, kHeads = 3, kKvHeads = 1, kHeadDim = 8;
constexpr std::int64_t kRow = (kHeads + 2 * kKvHeads) * kHeadDim, kMaxPositions = 6;
const Shape kInput{kBatch, kSequence, kWidth};
const std::vector<double> kFrequencies{1, 0.5, 0.1, 0.01};
/// The second sample consists of two documents.
const std::vector<std::int32_t> kPositions{0, 1, 2, 3, 4, 0, 1, 0, 1, 2};

struct Model {
  Model(Backend& backend, RotaryPairs pairs, bool norm, DType dtype = DType::fp32)
      : graph(
            backend, kInput,
            [&](Graph& g, ActivationId x) {
              positions = g.memory().add("positions", kPositions.size() * sizeof(std::int32_t), true);
              RotaryOptions options{.heads = kHeads, .kv_heads = kKvHeads, .head_dim = kHeadDim, .pairs = pairs};
              options.table = rotary_positions(g, "positions", kFrequencies, 1, kMaxPositions);
              if (norm) {
                options.q_norm = "q_norm";
                options.k_norm = "k_norm";
              }
              x = rotary(g, linear(g, x, "qkv", {.out_features = kRow}), positions, "rotary", options);
              return linear(g, x, "out", {.out_features = kWidth});
            },
            dtype) {
    std::memcpy(graph.graph().tensor(positions), kPositions.data(), kPositions.size() * sizeof(std::int32_t));
  }
  graph::TensorId positions = graph::kNoTensor;
  SmallGraph graph;
};

struct Case {
  const char* name;
  RotaryPairs pairs;
  bool norm;
};
class RotaryLayer : public testing::TestWithParam<Case> {};

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

TEST_P(RotaryLayer, GradientsAgreeWithFiniteDifferences) {
  const auto backend = reference::make_reference_backend();
  Model model(*backend, GetParam().pairs, GetParam().norm);
  EXPECT_EQ(model.graph.table().parameters().size(), GetParam().norm ? 6u : 4u);
  test::expect_gradients_of_finite_differences(model.graph, 400);
}

TEST_P(RotaryLayer, TheCpuAgreesWithTheReference) {
  const auto reference = reference::make_reference_backend();
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  Model exact(*reference, GetParam().pairs, GetParam().norm), fp32(*cpu, GetParam().pairs, GetParam().norm);
  Model bf16(*cpu, GetParam().pairs, GetParam().norm, DType::bf16);
  exact.graph.run();
  fp32.graph.run();
  bf16.graph.run();
  EXPECT_LT(distance(fp32.graph.output(), exact.graph.output()), 1e-6);
  // bf16 has 8 bits: each activation is rounded by 2^-9, and some of them follow each other.
  EXPECT_LT(distance(bf16.graph.output(), exact.graph.output()), 0.02);
  for (const graph::Parameter& p : exact.graph.table().parameters()) {
    EXPECT_LT(distance(fp32.graph.gradient(p.name), exact.graph.gradient(p.name)), 1e-5) << p.name;
    EXPECT_LT(distance(bf16.graph.gradient(p.name), exact.graph.gradient(p.name)), 0.05) << p.name;
  }
}

TEST_P(RotaryLayer, TakesThePlaceOfItsInputUnlessBackwardReadsThat) {
  const auto backend = reference::make_reference_backend();
  Model model(*backend, GetParam().pairs, GetParam().norm);
  const auto& tensors = model.graph.graph().memory().tensors();
  EXPECT_EQ(std::ranges::count(tensors, "rotary", &graph::TensorInfo::name), GetParam().norm ? 1 : 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, RotaryLayer,
                         testing::Values(Case{"HalfSplit", RotaryPairs::half_split, false},
                                         Case{"HalfSplitNorm", RotaryPairs::half_split, true},
                                         Case{"Interleaved", RotaryPairs::interleaved, false}),
                         [](const auto& info) { return info.param.name; });

TEST(RotaryTable, LayersShareIt) {
  const auto backend = reference::make_reference_backend();
  SmallGraph graph(*backend, kInput, [](Graph& g, ActivationId x) {
    EXPECT_EQ(rotary_positions(g, "positions", kFrequencies, 1, kMaxPositions),
              rotary_positions(g, "positions", kFrequencies, 1, kMaxPositions));
    return linear(g, x, "out", {.out_features = kWidth});
  });
  EXPECT_EQ(graph.table().constants().size(), 1u);
}

}  // namespace
}  // namespace lockstep::layers
