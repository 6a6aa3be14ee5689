// The FLOPs of a training step of a decoder, from its graph and from its configuration; recomputation does not count.
#include <gtest/gtest.h>

#include "graph/graph.h"
#include "layers/layers.h"
#include "lockstep/backend.h"
#include "lockstep/ops/cross_entropy.h"
#include "models/llama.h"

namespace lockstep::models {
namespace {

double flops_of_training(const LlamaConfig& config, std::int64_t batch, std::int64_t length, Recompute recompute) {
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  graph::ParameterTable table;
  graph::Graph graph({.mode = graph::Mode::train, .batch = batch, .layout_batch = batch}, table);
  const auto field = [&](const char* name) {
    return graph.memory().add(name, static_cast<std::size_t>(batch * length) * sizeof(std::int32_t),
                              /*persistent=*/true);
  };
  const graph::ActivationId hidden = llama(graph, config,
                                           {.sequence_length = length,
                                            .tokens = field("tokens"),
                                            .positions = field("positions"),
                                            .document_start = field("document_start")},
                                           {.recompute = recompute});
  layers::linear_cross_entropy(graph, hidden, "lm_head", field("targets"), graph.add_exchange(sizeof(LossSums)),
                               {.vocabulary = config.vocabulary, .weight = llama_head(config) + ".weight"});
  graph.plan(*backend);
  return graph::flops_of(graph);
}

/// The multiplications and additions that the mathematics of a forward pass of `tokens` tokens in windows of `length`
/// needs: matrix products, and attention over the tokens before each one.
double flops_of_forward(const LlamaConfig& c, std::int64_t tokens, std::int64_t length) {
  const std::int64_t q = c.heads * c.head_size, kv = c.key_value_heads * c.head_size;
  const std::int64_t matrices =
      c.layers * (c.width * (q + 2 * kv) + q * c.width + 3 * c.width * c.ffn_width) + c.vocabulary * c.width;
  const std::int64_t contexts = length + 1;  // twice the mean: a token attends to itself and to those before
  const std::int64_t attention = c.layers * q * contexts;  // q times k, and the probabilities times v
  return 2 * static_cast<double>(tokens * (matrices + attention));
}

TEST(LlamaFlops, AreThreeTimesThoseOfTheForwardPass) {
  LlamaConfig config{.vocabulary = 50,
                     .width = 24,
                     .ffn_width = 40,
                     .layers = 3,
                     .heads = 3,
                     .key_value_heads = 1,
                     .head_size = 8,
                     .positions = 64,
                     .tied_embeddings = true};
  const std::int64_t batch = 2, length = 16;
  for (const bool tied : {true, false})
    for (const Recompute recompute : {Recompute::none, Recompute::block, Recompute::selective}) {
      config.tied_embeddings = tied;
      EXPECT_DOUBLE_EQ(flops_of_training(config, batch, length, recompute),
                       3 * flops_of_forward(config, batch * length, length));
    }
}

}  // namespace
}  // namespace lockstep::models
