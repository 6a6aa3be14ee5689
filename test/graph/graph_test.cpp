// Tied and frozen parameters, and parameters stored as several tensors; the execution order; recomputation.
#include "graph/graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/error.h"
#include "lockstep/philox.h"
#include "test/graph/small_graph.h"
#include "test/reference/backend.h"

namespace lockstep::graph {
namespace {

using test::SmallGraph;
using Matrix = std::vector<double>;

std::vector<std::unique_ptr<Backend>> backends() {
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(reference::make_reference_backend());
  out.push_back(make_backend({.device = "cpu", .threads = 1}));
  return out;
}

Matrix to_double(const std::vector<float>& values) { return {values.begin(), values.end()}; }
/// a (m, k) times b (k, n), or b^T of b (n, k).
Matrix product(const Matrix& a, const Matrix& b, std::size_t m, std::size_t k, std::size_t n, bool transposed = false) {
  Matrix out(m * n);
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j)
      for (std::size_t l = 0; l < k; ++l) out[i * n + j] += a[i * k + l] * (transposed ? b[j * k + l] : b[l * n + j]);
  return out;
}
Matrix transposed(const Matrix& a, std::size_t m, std::size_t n) {
  Matrix out(m * n);
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j) out[j * m + i] = a[i * n + j];
  return out;
}

/// For sums of about ten products of order 1: fp32 rounding is below 1e-5, and a missing term is of order 1.
void expect_near(const std::vector<float>& actual, const Matrix& expected, double factor = 1) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], factor * expected[i], 1e-5 * factor) << i;
}

TEST(ExecutionOrder, RunsForwardThenBackward) {
  const ExecutionOrder order({true, false, true});
  EXPECT_EQ(order.n_forward(), 3u);
  const std::vector<Entry> expected{
      {0, Phase::forward}, {1, Phase::forward}, {2, Phase::forward}, {2, Phase::backward}, {0, Phase::backward}};
  EXPECT_EQ(order.entries(), expected);
}

TEST(ExecutionOrder, RecomputesABlockDirectlyBeforeItsBackward) {
  ExecutionOrder order({false, true, true, true});
  order.recompute({1, 2}, 2);
  const std::vector<Entry> backward(order.entries().begin() + 4, order.entries().end());
  const std::vector<Entry> expected{
      {3, Phase::backward}, {1, Phase::recompute}, {2, Phase::recompute}, {2, Phase::backward}, {1, Phase::backward}};
  EXPECT_EQ(backward, expected);
}

TEST(ExecutionOrder, RecomputesNothingWithoutABackwardPass) {
  ExecutionOrder order({false, false, true});
  order.recompute({0, 1}, 1);
  EXPECT_EQ(order.entries().size(), 4u);
}

constexpr std::size_t kRows = 5, kFeatures = 6;

/// y = (x W^T) W^T.
ActivationId tied_layers(Graph& graph, ActivationId x) {
  x = layers::linear(graph, x, "first", {.out_features = kFeatures, .bias = false, .weight = "shared"});
  return layers::linear(graph, x, "second", {.out_features = kFeatures, .bias = false, .weight = "shared"});
}

TEST(TiedParameters, GetTheSumOfTheGradientsOfAllTheirUses) {
  for (const auto& backend : backends()) {
    SmallGraph tied(*backend, {kRows, kFeatures}, tied_layers);
    ASSERT_EQ(tied.table().parameters().size(), 1u);
    const Matrix x = to_double(tied.input()), r = to_double(tied.output_gradient()), w = to_double(tied.get("shared"));
    const Matrix h = product(x, w, kRows, kFeatures, kFeatures, true), dh = product(r, w, kRows, kFeatures, kFeatures);
    Matrix dw = product(transposed(r, kRows, kFeatures), h, kFeatures, kRows, kFeatures);
    const Matrix first = product(transposed(dh, kRows, kFeatures), x, kFeatures, kRows, kFeatures);
    for (std::size_t i = 0; i < dw.size(); ++i) dw[i] += first[i];

    // The gradient is finished once, after the last use; the first use overwrites what was there before the step.
    tied.fill_gradients(1e9f);
    EXPECT_EQ(tied.run(), std::vector<std::string>{"shared"});
    expect_near(tied.gradient("shared"), dw);
    tied.run(GradientMode::accumulate);
    expect_near(tied.gradient("shared"), dw, 2);
  }
}

TEST(TiedParameters, AreFinishedByTheLastNodeThatWritesThem) {
  const auto backend = reference::make_reference_backend();
  SmallGraph graph(*backend, {kRows, kFeatures}, [](Graph& g, ActivationId x) {
    x = layers::linear(g, x, "first", {.out_features = kFeatures, .bias = false, .weight = "shared"});
    x = layers::linear(g, x, "middle", {.out_features = kFeatures});
    return layers::linear(g, x, "last", {.out_features = kFeatures, .bias = false, .weight = "shared"});
  });
  EXPECT_EQ(graph.run(), (std::vector<std::string>{"middle.bias", "middle.weight", "shared"}));
}

TEST(TiedParameters, MustHaveEqualDescriptions) {
  ParameterTable table;
  table.parameter({.name = "w", .shape = {4, 4}});
  EXPECT_NO_THROW(table.parameter({.name = "w", .shape = {4, 4}}));
  EXPECT_THROW(table.parameter({.name = "w", .shape = {4, 5}}), Error);
  EXPECT_THROW(table.parameter({.name = "w", .shape = {4, 4}, .trainable = false}), Error);
  EXPECT_THROW(table.parameter({.name = "w", .shape = {4, 4}, .parts = {{"a", 1}, {"b", 3}}}), Error);
}

/// A frozen layer before two layers that share their weight.
ActivationId frozen_and_tied_layers(Graph& graph, ActivationId x) {
  x = layers::linear(graph, x, "frozen", {.out_features = kFeatures, .trainable = false});
  return tied_layers(graph, x);
}

// The outputs are sums of six products of order 1, and each layer rounds its output to 8 bits: an error of 2^-8 times
// about 10.
TEST(WeightsInTheComputeType, AreReadByAllNodesThatShareThemAndByFrozenOnes) {
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  SmallGraph bf16(*backend, {kRows, kFeatures}, frozen_and_tied_layers, DType::bf16);
  const auto rounded = [&](const char* name) { return to_double(test::rounded_to(DType::bf16, bf16.get(name))); };
  const Matrix w = rounded("shared"), bias = rounded("frozen.bias");
  EXPECT_NE(w, to_double(bf16.get("shared"))) << "nothing is rounded";
  Matrix h = product(to_double(bf16.input()), rounded("frozen.weight"), kRows, kFeatures, kFeatures, true);
  for (std::size_t i = 0; i < h.size(); ++i) h[i] += bias[i % kFeatures];
  h = product(product(h, w, kRows, kFeatures, kFeatures, true), w, kRows, kFeatures, kFeatures, true);

  // Only the rounded weights are read: without the masters, forward and backward give the same results.
  EXPECT_EQ(bf16.run(), std::vector<std::string>{"shared"});
  for (std::size_t i = 0; i < h.size(); ++i) EXPECT_NEAR(bf16.output()[i], h[i], 0.04) << i;
  const std::vector<float> output = bf16.output(), gradients = bf16.gradient_arena();
  bf16.fill_masters(1e9f);
  bf16.run();
  EXPECT_EQ(bf16.output(), output);
  EXPECT_EQ(bf16.gradient_arena(), gradients);
}

/// The scales of norms are read as fp32 in bf16 too.
TEST(WeightsInTheComputeType, AreNotThoseOfNorms) {
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const auto output_of = [&](float scale) {
    SmallGraph graph(
        *backend, {kRows, kFeatures}, [](Graph& g, ActivationId x) { return layers::rms_norm(g, x, "norm", {}); },
        DType::bf16);
    graph.set("norm.weight", std::vector<float>(kFeatures, scale));
    graph.run();
    return graph.output();
  };
  const float halfway = 1 + 0x1p-8f;  // between 1 and the next bf16 number
  ASSERT_EQ(test::rounded_to(DType::bf16, {halfway}), std::vector<float>{1});
  EXPECT_NE(output_of(halfway), output_of(1));
}

/// Reads a parameter in a type of its choice.
class ReadingNode final : public Node {
 public:
  ReadingNode(ParameterId id, DType dtype) : Node("reader", {}, {}), use_(id), dtype_(dtype) {}
  void plan(Graph&, Backend&) override { use_.read_as(dtype_); }
  void forward(const Run&) override {}
  std::vector<ParameterUse*> parameters() override { return {&use_}; }

 private:
  ParameterUse use_;
  DType dtype_;
};

TEST(WeightsInTheComputeType, MustExistWhereTheyAreRead) {
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const auto plan = [&](ParameterTable& table, DType of_graph, DType of_node) {
    auto graph = std::make_unique<Graph>(GraphOptions{.mode = Mode::train, .dtype = of_graph}, table);
    graph->add_node<ReadingNode>(table.parameter({.name = "w", .shape = {4, 4}}), of_node);
    graph->plan(*backend);
    return graph;
  };
  ParameterTable first, second, third;
  EXPECT_THROW(plan(first, DType::fp32, DType::bf16), Error);
  EXPECT_THROW(plan(second, DType::bf16, DType::fp16), Error);
  const auto graph = plan(third, DType::bf16, DType::bf16);
  const std::vector<float> masters(third.n_total());
  const std::vector<std::uint16_t> weights(third.n_total());
  EXPECT_THROW(graph->bind({.parameters = masters.data()}), Error);
  EXPECT_THROW(
      graph->bind({.parameters = masters.data(), .compute_weights = weights.data(), .compute_dtype = DType::fp16}),
      Error);
  EXPECT_THROW(graph->bind({.parameters = masters.data(), .compute_dtype = DType::bf16}), Error);
  EXPECT_NO_THROW(
      graph->bind({.parameters = masters.data(), .compute_weights = weights.data(), .compute_dtype = DType::bf16}));
}

SmallGraph::Build three_layers(bool first_trainable, bool middle_trainable) {
  return [=](Graph& g, ActivationId x) {
    x = layers::linear(g, x, "first", {.out_features = 4, .trainable = first_trainable});
    x = layers::linear(g, x, "middle", {.out_features = 4, .trainable = middle_trainable});
    return layers::linear(g, x, "last", {.out_features = 3});
  };
}

TEST(FrozenParameters, HaveNoGradientAndDoNotChangeTheOthers) {
  for (const auto& backend : backends()) {
    SmallGraph all(*backend, {kRows, kFeatures}, three_layers(true, true));
    SmallGraph some(*backend, {kRows, kFeatures}, three_layers(true, false));
    all.run();
    EXPECT_EQ(some.run(), (std::vector<std::string>{"last.bias", "last.weight", "first.bias", "first.weight"}));
    for (const char* name : {"last.weight", "last.bias", "first.weight", "first.bias"})
      EXPECT_EQ(some.gradient(name), all.gradient(name)) << name;

    const ParameterTable& table = some.table();
    EXPECT_EQ(table.segments({}).size(), 4u);
    EXPECT_EQ(table.order().size(), 4u);
    for (const Parameter& p : table.parameters()) {
      EXPECT_EQ(p.begin >= table.n_gradients(), !p.trainable) << p.name;
      EXPECT_LE(p.begin + p.n_elements, table.n_total());
    }
    EXPECT_EQ(table.n_gradients(), table.n_trainable());  // there are no statistics
    EXPECT_LT(table.n_gradients(), table.n_total());
    EXPECT_EQ(table.n_canonical(), all.table().n_canonical());
    EXPECT_NE(table.description(), all.table().description());
  }
}

TEST(FrozenParameters, NothingIsComputedBackwardBelowTheFirstTrainableOne) {
  const auto backend = reference::make_reference_backend();
  SmallGraph graph(*backend, {kRows, kFeatures}, three_layers(false, false));
  std::vector<std::string> backward;
  for (const Entry& entry : graph.graph().order().entries())
    if (entry.phase == Phase::backward)
      backward.push_back(graph.graph().nodes()[static_cast<std::size_t>(entry.node)]->name());
  EXPECT_EQ(backward, (std::vector<std::string>{"probe", "last"}));
  EXPECT_EQ(graph.run(), (std::vector<std::string>{"last.bias", "last.weight"}));
}

/// A transposed layout, in which no part is contiguous. There is one element of padding per row.
class TransposedLayout final : public ParameterLayout {
 public:
  TransposedLayout(std::size_t rows, std::size_t columns) : rows_(rows), columns_(columns) {}
  std::size_t n_elements() const override { return columns_ * (rows_ + 1); }
  void pack(std::span<const float> canonical, float* parameter) const override {
    std::fill_n(parameter, n_elements(), 0.0f);
    for (std::size_t i = 0; i < canonical.size(); ++i)
      parameter[(i % columns_) * (rows_ + 1) + i / columns_] = canonical[i];
  }
  void unpack(const float* parameter, std::span<float> canonical) const override {
    for (std::size_t i = 0; i < canonical.size(); ++i)
      canonical[i] = parameter[(i % columns_) * (rows_ + 1) + i / columns_];
  }
  std::string describe() const override { return "transposed"; }

 private:
  std::size_t rows_, columns_;
};

TEST(ParameterParts, HaveTheInitialValuesOfTheirNames) {
  ParameterTable table;
  const Initializer normal{.kind = Initializer::Kind::normal, .value = 0.02};
  const ParameterId qkv =
      table.parameter({.name = "qkv", .shape = {10, 4}, .initial = normal, .parts = {{"q", 6}, {"k", 2}, {"v", 2}}});
  const ParameterId q = table.parameter({.name = "q", .shape = {6, 4}, .initial = normal});
  const ParameterId v = table.parameter({.name = "v", .shape = {2, 4}, .initial = normal});
  const std::vector<float> whole = table.initial_values(table[qkv], 5);
  const std::vector<float> first = table.initial_values(table[q], 5), last = table.initial_values(table[v], 5);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), whole.begin()));
  EXPECT_TRUE(std::equal(last.begin(), last.end(), whole.begin() + 32));
  ASSERT_EQ(table[qkv].parts.size(), 3u);
  EXPECT_EQ(table[qkv].parts[1].shape, Shape({2, 4}));
  EXPECT_EQ(table[qkv].parts[2].begin, 32u);
  EXPECT_THROW(table.parameter({.name = "short", .shape = {10, 4}, .parts = {{"a", 6}, {"b", 3}}}), Error);
}

TEST(ParameterParts, ArePackedAndUnpackedOneByOne) {
  for (const bool is_transposed : {false, true}) {
    ParameterTable table;
    const ParameterId id = table.parameter({.name = "qkv", .shape = {10, 4}, .parts = {{"q", 6}, {"k", 2}, {"v", 2}}});
    if (is_transposed) table.set_layout(id, std::make_shared<TransposedLayout>(10, 4));
    table.fix_order({id});
    const Parameter& p = table[id];
    std::vector<float> canonical(40);
    std::iota(canonical.begin(), canonical.end(), 1.0f);
    std::vector<float> packed(p.n_elements);
    for (const std::size_t number : {1u, 0u, 2u}) {
      const ParameterPart& part = p.parts[number];
      pack_part(p, part, std::span(canonical).subspan(part.begin, part.n_elements()), packed);
    }
    EXPECT_EQ(packed, pack(p, canonical));
    for (const ParameterPart& part : p.parts) {
      std::vector<float> values(part.n_elements());
      unpack_part(p, part, packed, values);
      EXPECT_TRUE(
          std::equal(values.begin(), values.end(), canonical.begin() + static_cast<std::ptrdiff_t>(part.begin)));
    }
  }
}

/// `n_blocks` blocks of two layers; each block is recomputed where `is_recomputed`.
SmallGraph::Build chain(int n_blocks, bool is_recomputed) {
  return [=](Graph& g, ActivationId x) {
    for (int block = 0; block < n_blocks; ++block) {
      const std::string name = "block" + std::to_string(block);
      const int first = g.n_nodes();
      x = layers::linear(g, x, name + ".up", {.out_features = 256, .activation = ActivationFunction::gelu});
      x = layers::linear(g, x, name + ".down", {.out_features = 32, .activation = ActivationFunction::relu});
      if (is_recomputed) g.recompute(first, g.n_nodes() - 1);
    }
    return x;
  };
}

TEST(Recomputation, GivesTheSameBitsInLessMemory) {
  for (const auto& backend : backends()) {
    SmallGraph kept(*backend, {16, 32}, chain(8, false)), recomputed(*backend, {16, 32}, chain(8, true));
    EXPECT_EQ(kept.run(), recomputed.run());
    EXPECT_EQ(kept.output(), recomputed.output());
    EXPECT_EQ(kept.gradient_arena(), recomputed.gradient_arena());
    // Without recomputation, each of the 8 blocks keeps the tensor between its two layers; with it, only one block
    // does.
    EXPECT_LT(recomputed.graph().memory().size_bytes(), kept.graph().memory().size_bytes() * 2 / 5);
    kept.run(GradientMode::accumulate);
    recomputed.run(GradientMode::accumulate);
    EXPECT_EQ(kept.gradient_arena(), recomputed.gradient_arena());
  }
}

TEST(Recomputation, RepeatsOnlyNodesWhoseOutputsAreReadAgain) {
  const auto backend = reference::make_reference_backend();
  SmallGraph graph(*backend, {4, 8}, [](Graph& g, ActivationId x) {
    const int first = g.n_nodes();
    x = layers::linear(g, x, "a", {.out_features = 8});
    x = layers::linear(g, x, "b", {.out_features = 8});
    g.recompute(first, g.n_nodes() - 1);
    return x;
  });
  std::vector<std::string> repeated;
  for (const Entry& entry : graph.graph().order().entries())
    if (entry.phase == Phase::recompute)
      repeated.push_back(graph.graph().nodes()[static_cast<std::size_t>(entry.node)]->name());
  EXPECT_EQ(repeated, std::vector<std::string>{"a"});  // no node reads the output of b in the backward pass
}

/// Residual blocks like those of a ResNet, whose norms are pending in their neighbours.
SmallGraph::Build residual_blocks(bool is_recomputed) {
  return [=](Graph& g, ActivationId x) {
    x = layers::relu(g, layers::batch_norm(g, layers::convolution(g, x, "stem", {.out_channels = 16}), "stem.bn", {}));
    for (int block = 0; block < 4; ++block) {
      const std::string name = "block" + std::to_string(block);
      const int first = g.n_nodes();
      ActivationId y = layers::convolution(g, x, name + ".1", {.out_channels = 16});
      y = layers::relu(g, layers::batch_norm(g, y, name + ".bn1", {}));
      y = layers::batch_norm(g, layers::convolution(g, y, name + ".2", {.out_channels = 16}), name + ".bn2", {});
      x = layers::relu(g, layers::add(g, y, x));
      if (is_recomputed) g.recompute(first, g.n_nodes() - 1);
    }
    return layers::global_average_pool(g, x, "pool");
  };
}

TEST(Recomputation, DoesNotCountStatisticsOfNormsTwice) {
  for (const auto& backend : backends()) {
    SmallGraph kept(*backend, {4, 8, 8, 3}, residual_blocks(false));
    SmallGraph recomputed(*backend, {4, 8, 8, 3}, residual_blocks(true));
    EXPECT_LT(recomputed.graph().memory().size_bytes(), kept.graph().memory().size_bytes());
    for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate}) {
      EXPECT_EQ(kept.run(mode), recomputed.run(mode));
      EXPECT_EQ(kept.gradient_arena(), recomputed.gradient_arena());
    }
    const std::vector<float> gradients = kept.gradient_arena();
    EXPECT_TRUE(std::ranges::all_of(gradients, [](float g) { return std::isfinite(g); }));
  }
}

TEST(Recomputation, RejectsBlocksThatOverlapOrCannotRunTwice) {
  ParameterTable table;
  Graph graph({.batch = 2, .layout_batch = 2}, table);
  ActivationId x = graph.add_activation({.name = "x", .shape = {2, 4}});
  graph.add_node<test::GivenNode>(x, std::vector<std::byte>(32));
  x = layers::linear(graph, x, "a", {.out_features = 4});
  x = layers::linear(graph, x, "b", {.out_features = 4});
  graph.add_node<test::ProbeNode>(x);
  graph.recompute(1, 2);
  EXPECT_THROW(graph.recompute(2, 2), Error);
  EXPECT_THROW(graph.recompute(3, 3), Error);
  EXPECT_THROW(graph.recompute(0, 4), Error);
}

/// The gradient that reaches `stem` through its pooling, whose output `n_readers` convolutions read, is the sum of the
/// gradients through each of them alone.
class ReadersOfAPooling : public testing::TestWithParam<int> {};

TEST_P(ReadersOfAPooling, GiveTheSumOfTheirGradients) {
  const int n_readers = GetParam();
  const auto reader = [](int i) { return "reader" + std::to_string(i); };
  for (const auto& backend : backends()) {
    SmallGraph graph(*backend, {2, 9, 7, 3}, [&](Graph& g, ActivationId x) {
      const ActivationId pooled = layers::max_pool(g, layers::convolution(g, x, "stem", {.out_channels = 16}), "pool",
                                                   /*window=*/3, /*stride=*/2, /*padding=*/1);
      ActivationId sum = layers::convolution(g, pooled, reader(0), {.out_channels = 8});
      for (int i = 1; i < n_readers; ++i)
        sum = layers::add(g, sum, layers::convolution(g, pooled, reader(i), {.out_channels = 8}));
      return sum;
    });
    const auto gradient_through = [&](int only) {
      std::map<std::string, std::vector<float>> kept;
      for (int i = 0; i < n_readers; ++i)
        if (only >= 0 && i != only) {
          std::vector<float>& weight = kept[reader(i) + ".weight"] = graph.get(reader(i) + ".weight");
          graph.set(reader(i) + ".weight", std::vector<float>(weight.size()));
        }
      graph.run();
      for (const auto& [name, values] : kept) graph.set(name, values);
      return graph.gradient("stem.weight");
    };
    const std::vector<float> all = gradient_through(-1);
    Matrix sum(all.size());
    for (int i = 0; i < n_readers; ++i) {
      const std::vector<float> part = gradient_through(i);
      EXPECT_GT(std::ranges::max(part), 0);
      for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += part[j];
    }
    // Sums of a few hundred products of order 1.
    for (std::size_t j = 0; j < sum.size(); ++j) EXPECT_NEAR(all[j], sum[j], 1e-4) << j;
    const auto& tensors = graph.graph().memory().tensors();
    EXPECT_EQ(std::ranges::count(tensors, "added d pool", &TensorInfo::name), n_readers > 1 ? 1 : 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReadersOfAPooling, testing::Values(1, 2, 3));

TEST(Graph, RejectsAPendingInputThatNoNodeHasApplied) {
  const auto backend = reference::make_reference_backend();
  const auto build = [](Graph& g, ActivationId x) {
    x = layers::batch_norm(g, layers::convolution(g, x, "conv", {.out_channels = 8}), "bn", {});
    return layers::linear(g, x, "fc", {.out_features = 2});
  };
  EXPECT_THROW(SmallGraph(*backend, {2, 4, 4, 3}, build), Error);
}

}  // namespace
}  // namespace lockstep::graph
