// linear on inputs of any rank, with and without bias and activation, compared with the same in double precision.
#include <gtest/gtest.h>

#include <cmath>

#include "test/graph/small_graph.h"
#include "test/reference/backend.h"
#include "test/support/finite_difference.h"

namespace lockstep::layers {
namespace {

using test::SmallGraph;
using Values = std::vector<double>;

constexpr std::int64_t kBatch = 2, kSequence = 5, kIn = 12, kOut = 7;

Values to_double(const std::vector<float>& values) { return {values.begin(), values.end()}; }

double activated(ActivationFunction function, double z) {
  if (function == ActivationFunction::relu) return std::max(z, 0.0);
  if (function == ActivationFunction::gelu)
    return 0.5 * z * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
  return z;
}

/// f(x W^T + b), for rows of kIn numbers; if `b` is empty, there is no bias.
Values linear_in_double(const Values& x, const Values& w, const Values& b, ActivationFunction function) {
  Values y;
  for (std::size_t row = 0; row < x.size() / kIn; ++row)
    for (std::size_t o = 0; o < kOut; ++o) {
      double z = b.empty() ? 0.0 : b[o];
      for (std::size_t i = 0; i < kIn; ++i) z += x[row * kIn + i] * w[o * kIn + i];
      y.push_back(activated(function, z));
    }
  return y;
}

struct Case {
  const char* name;
  bool bias;
  ActivationFunction activation;
};

class Linear : public testing::TestWithParam<Case> {};

TEST_P(Linear, TransformsTheLastDimensionOfAnyShape) {
  const auto [name, bias, activation] = GetParam();
  const auto reference = reference::make_reference_backend();
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  for (Backend* backend : {reference.get(), cpu.get()}) {
    SmallGraph graph(*backend, {kBatch, kSequence, kIn}, [&](Graph& g, ActivationId x) {
      const ActivationId y = linear(g, x, "fc", {.out_features = kOut, .bias = bias, .activation = activation});
      EXPECT_EQ(g.activation(y).shape, Shape({kBatch, kSequence, kOut}));
      EXPECT_EQ(g.activation(y).dtype, DType::fp32);
      return y;
    });
    graph.run();
    const Values x = to_double(graph.input()), r = to_double(graph.output_gradient());
    Values w = to_double(graph.get("fc.weight")), b = bias ? to_double(graph.get("fc.bias")) : Values{};
    const Values y = linear_in_double(x, w, b, activation);
    ASSERT_EQ(graph.output().size(), y.size());
    // Sums of 12 products of order 1 in fp32.
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(graph.output()[i], y[i], 5e-6) << i;

    const auto loss = [&] { return test::dot(r, linear_in_double(x, w, b, activation)); };
    EXPECT_TRUE(test::gradient_matches(w, to_double(graph.gradient("fc.weight")), loss, 2e-6));
    if (bias) {
      EXPECT_TRUE(test::gradient_matches(b, to_double(graph.gradient("fc.bias")), loss, 2e-6));
    }
    EXPECT_EQ(graph.table().parameters().size(), bias ? 2u : 1u);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Linear,
                         testing::Values(Case{"Bias", true, ActivationFunction::none},
                                         Case{"NoBias", false, ActivationFunction::none},
                                         Case{"BiasRelu", true, ActivationFunction::relu},
                                         Case{"NoBiasRelu", false, ActivationFunction::relu},
                                         Case{"BiasGelu", true, ActivationFunction::gelu}),
                         [](const auto& info) { return info.param.name; });

TEST(LinearParts, NameTheTensorsOfOneMatrix) {
  const auto backend = reference::make_reference_backend();
  SmallGraph graph(*backend, {kBatch, kSequence, kIn}, [](Graph& g, ActivationId x) {
    return linear(g, x, "qkv", {.out_features = 8, .parts = {{"q_proj", 4}, {"k_proj", 2}, {"v_proj", 2}}});
  });
  std::vector<std::string> names;
  for (const graph::Parameter& p : graph.table().parameters())
    for (const graph::ParameterPart& part : p.parts) names.push_back(part.name + " " + part.shape.text());
  EXPECT_EQ(names, (std::vector<std::string>{"q_proj.weight (4, 12)", "k_proj.weight (2, 12)", "v_proj.weight (2, 12)",
                                             "q_proj.bias (4)", "k_proj.bias (2)", "v_proj.bias (2)"}));

  // The combined matrix has the same initial values as the three layers would have, so the result is the same.
  SmallGraph alone(*backend, {kBatch, kSequence, kIn},
                   [](Graph& g, ActivationId x) { return linear(g, x, "k_proj", {.out_features = 2}); });
  graph.forward();
  alone.forward();
  for (std::size_t row = 0; row < kBatch * kSequence; ++row)
    for (std::size_t o = 0; o < 2; ++o) EXPECT_EQ(graph.output()[row * 8 + 4 + o], alone.output()[row * 2 + o]);
}

}  // namespace
}  // namespace lockstep::layers
