// The operations that layers report (graph/graph.h), compared with counts by hand.
#include "graph/graph.h"

#include <gtest/gtest.h>

#include "test/graph/small_graph.h"

namespace lockstep::layers {
namespace {

using graph::ActivationId;
using graph::Graph;
using test::SmallGraph;

double flops(const Shape& input, const SmallGraph::Build& build) {
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  return graph::flops_of(SmallGraph(*backend, input, build).graph());
}

ActivationId two_linear_layers(Graph& g, ActivationId x) {
  return linear(g, linear(g, x, "a", {.out_features = 7}), "b", {.out_features = 3});
}

TEST(Flops, OfLinearLayers) {
  const double a = 2 * 10 * 12 * 7, b = 2 * 10 * 7 * 3;
  // Forward, and the gradients of weight and input; the input of the first layer has no gradient.
  EXPECT_EQ(flops({2, 5, 12}, two_linear_layers), 2 * a + 3 * b);
}

TEST(Flops, OfFrozenLayers) {
  const auto frozen = [](Graph& g, ActivationId x) {
    return linear(g, linear(g, x, "a", {.out_features = 7, .trainable = false}), "b", {.out_features = 3});
  };
  EXPECT_EQ(flops({2, 5, 12}, frozen), 2 * 10 * 12 * 7 + 2.0 * 2 * 10 * 7 * 3);
}

TEST(Flops, OfConvolutions) {
  const auto build = [](Graph& g, ActivationId x) {
    const ActivationId y = convolution(g, x, "a", {.out_channels = 6, .stride = 2});  // (2, 4, 4, 6)
    return convolution(g, y, "b", {.out_channels = 5, .kernel_size = 1, .padding = 0});
  };
  const double a = 2 * (2 * 4 * 4 * 6) * (4 * 3 * 3), b = 2 * (2 * 4 * 4 * 5) * 6;
  EXPECT_EQ(flops({2, 8, 8, 4}, build), 2 * a + 3 * b);
}

TEST(Flops, OfAttention) {
  const auto attend = [](Graph& g, ActivationId qkv) {
    return attention(g, qkv, graph::kNoTensor, "attention", {.heads = 3, .kv_heads = 1, .head_dim = 8});
  };
  // Token t attends to t + 1 tokens; a pair costs a dot product and a multiple of v in each head.
  const double forward = 2 * (1 + 2 + 3 + 4) * 3 * (2 * 8 + 2 * 8);
  EXPECT_EQ(flops({2, 4, 40}, attend), forward) << "without parameters there is nothing to train";
  const auto trained = [&](Graph& g, ActivationId x) { return attend(g, linear(g, x, "qkv", {.out_features = 40})); };
  EXPECT_EQ(flops({2, 4, 5}, trained), 3 * forward + 2.0 * (2 * 8 * 5 * 40));
}

}  // namespace
}  // namespace lockstep::layers
