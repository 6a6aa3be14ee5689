// The FLOPs of a training step of a decoder, from its graph and from its configuration; recomputation does not count.
#include <gtest/gtest.h>

#include "graph/flops.h"
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
                       3 * config.forward_flops(static_cast<double>(batch * length), length));
    }
}

}  // namespace
}  // namespace lockstep::models
