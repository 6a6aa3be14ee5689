// What a backend is asked to capture, with the CUDA kernels that are compiled for the host.
// test/commands/generate_test.py compares the tokens that decoders generate with those of transformers.
#include "generate/decoder.h"

#include <gtest/gtest.h>

#ifdef LOCKSTEP_CUDA
#include <algorithm>
#include <string>
#include <vector>

#include "graph/parameter_arena.h"
#include "test/support/cuda_on_host/backend.h"
#include "test/support/cuda_on_host/launches.h"

namespace lockstep::generate {
namespace {

const models::LlamaConfig kTiny{.vocabulary = 16,
                                .width = 16,
                                .ffn_width = 16,
                                .layers = 1,
                                .heads = 2,
                                .key_value_heads = 1,
                                .head_size = 8,
                                .positions = 32,
                                .tied_embeddings = true};

TEST(Decoder, CapturesDecodingAndNothingElse) {
  const auto backend = test::make_cuda_on_host_backend();
  graph::ParameterTable table;
  table.set_base([](const std::string&) { return true; });  // no gradients
  Decoder decoder(kTiny, {.slots = 2, .capacity = 16, .chunk = 8}, DType::fp32, false, *backend, table);
  table.fix_order({});
  graph::ParameterArena parameters(table, DType::fp32, *backend);
  const auto n_graphs = [](const auto& work) {
    cuda_fibers::LaunchList list;
    work();
    EXPECT_GT(list.launches.size(), 5u) << "the kernels of a step";
    return std::ranges::count(list.launches, std::string(test::kCapturedGraph));
  };
  for (int i = 0; i < 2; ++i) {  // a graph belongs to one place in memory, which may be lent again
    decoder.allocate(parameters.bindings());
    EXPECT_EQ(n_graphs([&] {
                const std::span<const float> logits = decoder.prefill(
                    std::vector<NewToken>{{.id = 1, .position = 0}, {.id = 2, .position = 1, .wants_logits = true}});
                EXPECT_EQ(std::ssize(logits), kTiny.vocabulary);
              }),
              0);
    for (int position = 2; position < 6; ++position)
      EXPECT_EQ(n_graphs([&] {
                  const std::span<const float> logits = decoder.decode(std::vector<NewToken>{
                      {.id = 3, .slot = 0, .position = position}, {.id = 4, .slot = 1, .position = position - 2}});
                  EXPECT_EQ(std::ssize(logits), 2 * kTiny.vocabulary);
                }),
                1);
  }
}

}  // namespace
}  // namespace lockstep::generate
#endif
