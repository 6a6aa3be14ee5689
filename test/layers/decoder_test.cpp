// Graphs of the layers that a decoder is made of: linear, RMS norm, attention, activation functions, SwiGLU and
// addition, on (batch, sequence, features), in fp32 and bf16.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/error.h"
#include "test/graph/small_graph.h"
#include "test/reference/backend.h"

namespace lockstep::layers {
namespace {

using test::SmallGraph;

constexpr std::int64_t kBatch = 2, kSequence = 5, kWidth = 16;
const Shape kInput{kBatch, kSequence, kWidth};

/// linear -> RMS norm -> silu -> linear.
ActivationId simple(Graph& g, ActivationId x) {
  x = linear(g, x, "up", {.out_features = 32, .bias = false});
  x = activation(g, rms_norm(g, x, "norm", {}), ActivationFunction::silu);
  return linear(g, x, "down", {.out_features = kWidth});
}

/// Two blocks on a residual stream, with the addition and the norm in one op, and all activation functions.
ActivationId fused_residual(Graph& g, ActivationId x) {
  ActivationId stream = linear(g, x, "embed", {.out_features = kWidth, .bias = false});
  ActivationId y = rms_norm(g, stream, "norm0", {});
  stream = add(g, stream, activation(g, linear(g, y, "a", {.out_features = kWidth}), ActivationFunction::gelu));
  ActivationId z = linear(g, rms_norm(g, stream, "norm1", {}), "b", {.out_features = kWidth});
  const NormalizedStream block =
      add_rms_norm(g, relu(g, z), linear(g, x, "skip", {.out_features = kWidth}), "norm2", {});
  const NormalizedStream last =
      add_rms_norm(g, linear(g, block.y, "c", {.out_features = kWidth}), block.stream, "norm3", {});
  return last.y;
}

/// A block whose input is normalised first and added at the end, by one op.
ActivationId pre_norm(Graph& g, ActivationId x) {
  const ActivationId stream = linear(g, x, "embed", {.out_features = kWidth});
  ActivationId y = linear(g, rms_norm(g, stream, "norm0", {}), "a", {.out_features = 2 * kWidth});
  y = linear(g, activation(g, y, ActivationFunction::silu), "b", {.out_features = kWidth});
  const NormalizedStream next = add_rms_norm(g, y, stream, "norm1", {});
  y = linear(g, next.y, "c", {.out_features = kWidth});
  return add_rms_norm(g, y, next.stream, "norm2", {}).y;
}

/// The same, with the addition as an op of its own.
ActivationId residual_by_add(Graph& g, ActivationId x) {
  ActivationId stream = linear(g, x, "embed", {.out_features = kWidth, .bias = false});
  ActivationId y = rms_norm(g, stream, "norm0", {});
  stream = add(g, stream, activation(g, linear(g, y, "a", {.out_features = kWidth}), ActivationFunction::gelu));
  const ActivationId z = relu(g, linear(g, rms_norm(g, stream, "norm1", {}), "b", {.out_features = kWidth}));
  stream = add(g, z, linear(g, x, "skip", {.out_features = kWidth}));
  y = rms_norm(g, stream, "norm2", {});
  stream = add(g, linear(g, y, "c", {.out_features = kWidth}), stream);
  return rms_norm(g, stream, "norm3", {});
}

/// x + x, and an activation with several readers.
ActivationId shared_inputs(Graph& g, ActivationId x) {
  x = linear(g, x, "first", {.out_features = kWidth});
  const ActivationId doubled = add(g, x, x);
  const ActivationId gate = activation(g, x, ActivationFunction::silu);
  return add(g, add(g, gate, doubled), linear(g, gate, "last", {.out_features = kWidth}));
}

/// Grouped queries: 4 heads, and 2 heads of keys and values.
ActivationId attends(Graph& g, ActivationId x) {
  x = linear(g, x, "qkv", {.out_features = 8 * 8});
  x = attention(g, x, graph::kNoTensor, "attention", {.heads = 4, .kv_heads = 2, .head_dim = 8});
  return linear(g, x, "out", {.out_features = kWidth});
}

/// A gated feed-forward layer, with gate and up in one matrix.
ActivationId gated(Graph& g, ActivationId x) {
  x = linear(g, x, "gate_up", {.out_features = 2 * 24, .bias = false, .parts = {{"gate", 24}, {"up", 24}}});
  return linear(g, glu(g, x), "down", {.out_features = kWidth, .bias = false});
}

struct Case {
  const char* name;
  ActivationId (*build)(Graph&, ActivationId);
};

class Decoder : public testing::TestWithParam<Case> {};

/// Euclidean norm of a - b, over that of b.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

TEST_P(Decoder, GradientsAgreeWithFiniteDifferences) {
  const auto backend = reference::make_reference_backend();
  SmallGraph graph(*backend, kInput, GetParam().build);
  test::expect_gradients_of_finite_differences(graph, 200);
}

TEST_P(Decoder, TheCpuAgreesWithTheReference) {
  const auto reference = reference::make_reference_backend();
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  SmallGraph exact(*reference, kInput, GetParam().build), fp32(*cpu, kInput, GetParam().build);
  SmallGraph bf16(*cpu, kInput, GetParam().build, DType::bf16);
  exact.run();
  fp32.run();
  bf16.run();
  EXPECT_LT(distance(fp32.output(), exact.output()), 1e-6);
  // bf16 has 8 bits: each activation is rounded by 2^-9, and about ten of them follow each other.
  EXPECT_LT(distance(bf16.output(), exact.output()), 0.02);
  for (const graph::Parameter& p : exact.table().parameters()) {
    EXPECT_LT(distance(fp32.gradient(p.name), exact.gradient(p.name)), 1e-5) << p.name;
    EXPECT_LT(distance(bf16.gradient(p.name), exact.gradient(p.name)), 0.05) << p.name;
  }
}

TEST_P(Decoder, RecomputingItGivesTheSameBits) {
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    SmallGraph kept(*cpu, kInput, GetParam().build, dtype);
    SmallGraph recomputed(
        *cpu, kInput,
        [&](Graph& g, ActivationId x) {
          const int first = g.n_nodes();
          x = GetParam().build(g, x);
          g.recompute(first, g.n_nodes() - 1);
          return x;
        },
        dtype);
    for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate}) {
      EXPECT_EQ(kept.run(mode), recomputed.run(mode));
      EXPECT_EQ(kept.gradient_arena(), recomputed.gradient_arena());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Graphs, Decoder,
                         testing::Values(Case{"Simple", simple}, Case{"FusedResidual", fused_residual},
                                         Case{"PreNorm", pre_norm}, Case{"ResidualByAdd", residual_by_add},
                                         Case{"SharedInputs", shared_inputs}, Case{"Attention", attends},
                                         Case{"Gated", gated}),
                         [](const auto& info) { return info.param.name; });

/// The tokens of a document are neither influenced by earlier documents, nor influence them.
TEST(DecoderAttention, RespectsDocuments) {
  const auto reference = reference::make_reference_backend();
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  for (Backend* backend : {reference.get(), cpu.get()}) {
    graph::TensorId starts = graph::kNoTensor;
    SmallGraph graph(*backend, kInput, [&](Graph& g, ActivationId x) {
      starts = g.memory().add("document_start", kBatch * kSequence * sizeof(std::int32_t), true);
      x = linear(g, x, "qkv", {.out_features = 8 * 8});
      return attention(g, x, starts, "attention", {.heads = 4, .kv_heads = 2, .head_dim = 8});
    });
    const auto output_with = [&](std::vector<std::int32_t> of_a_sample) {
      auto* const at = graph.graph().tensor<std::int32_t>(starts);
      for (std::int64_t b = 0; b < kBatch; ++b) std::copy(of_a_sample.begin(), of_a_sample.end(), at + b * kSequence);
      graph.run();
      return graph.output();
    };
    const std::vector<float> one = output_with({0, 0, 0, 0, 0}), two = output_with({0, 0, 2, 2, 2});
    const std::vector<float> alone = output_with({0, 1, 2, 3, 4});
    const std::size_t token = 4 * 8;
    for (std::size_t i = 0; i < one.size(); ++i) {
      const std::size_t t = i / token % kSequence;
      EXPECT_EQ(one[i] == two[i], t < 2) << backend->name() << ", token " << t;
      EXPECT_EQ(alone[i] == two[i], t == 0 || t == 2) << backend->name() << ", token " << t;
    }
  }
}

TEST(DecoderAttention, RejectsAnotherWidth) {
  const auto reference = reference::make_reference_backend();
  const auto build = [](Graph& g, ActivationId x) {
    return attention(g, x, graph::kNoTensor, "attention", {.heads = 4, .kv_heads = 2, .head_dim = 8});
  };
  EXPECT_THROW(SmallGraph(*reference, kInput, build), Error);
}

TEST(DecoderResidual, OneOpAndTwoOpsAgree) {
  const auto reference = reference::make_reference_backend();
  SmallGraph one(*reference, kInput, fused_residual), two(*reference, kInput, residual_by_add);
  one.run();
  two.run();
  EXPECT_LT(distance(one.output(), two.output()), 1e-6);
  for (const graph::Parameter& p : one.table().parameters())
    EXPECT_LT(distance(one.gradient(p.name), two.gradient(p.name)), 1e-5) << p.name;
}

TEST(DecoderResidual, RejectsAnotherReaderOfAFusedResidual) {
  const auto reference = reference::make_reference_backend();
  const auto build = [](Graph& g, ActivationId x) {
    x = linear(g, x, "a", {.out_features = kWidth});
    const ActivationId z = linear(g, x, "b", {.out_features = kWidth});
    return add(g, add_rms_norm(g, z, x, "norm", {}).y, z);
  };
  EXPECT_THROW(SmallGraph(*reference, kInput, build), Error);
}

}  // namespace
}  // namespace lockstep::layers
