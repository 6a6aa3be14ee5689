// What a backend is asked to capture, and what decoding computes, with the CUDA kernels that are compiled for the host.
// test/commands/generate_test.py compares the tokens that decoders generate with those of transformers.
#include "generate/decoder.h"

#include <gtest/gtest.h>

#ifdef LOCKSTEP_CUDA
#include <algorithm>
#include <cmath>
#include <set>
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
    EXPECT_GT(list.launches.size(), 5u) << "the kernels or stages of a step";
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

/// A decoder with random weights, which are the same on every backend.
struct Model {
  Model(const models::LlamaConfig& config, const DecoderSizes& sizes, DType dtype, std::unique_ptr<Backend> on)
      : backend(std::move(on)),
        table(of_base()),
        decoder(config, sizes, dtype, false, *backend, table),
        parameters((table.fix_order({}), table), dtype, *backend) {
    const auto stream = backend->make_stream();
    for (const graph::Parameter& parameter : table.parameters())
      parameters.write(parameter, 0, graph::pack(parameter, table.initial_values(parameter, 3)), *stream);
    parameters.refresh(*stream);
    decoder.allocate(parameters.bindings());
  }
  static graph::ParameterTable of_base() {
    graph::ParameterTable table;
    table.set_base([](const std::string&) { return true; });
    return table;
  }
  std::unique_ptr<Backend> backend;
  graph::ParameterTable table;
  Decoder decoder;
  graph::ParameterArena parameters;
};

models::LlamaConfig small_model() {
  return {.vocabulary = 37,
          .width = 24,
          .ffn_width = 40,
          .layers = 2,
          .heads = 4,
          .key_value_heads = 2,
          .head_size = 8,
          .positions = 128,
          .tied_embeddings = true,
          .initializer_range = 0.3};
}

/// The features of each architecture.
std::vector<models::LlamaConfig> kinds_of_models() {
  std::vector<models::LlamaConfig> all(4, small_model());
  all[0].query_key_value_bias = true;
  all[0].tied_embeddings = false;
  all[1].query_key_norm = true;
  all[1].layers_without_rope = {1};
  all[1].output_bias = all[1].ffn_bias = true;
  all[2].window = 20;
  all[2].layers_without_window = {0};
  all[2].norms_of_outputs = all[2].norms_around_one = all[2].scaled_embeddings = all[2].query_key_norm = true;
  all[2].local_rope_theta = 100;
  all[2].ffn_activation = ActivationFunction::gelu;
  all[3].width = 21;  // in which no vector fits
  return all;
}

std::vector<NewToken> prompt_of(std::int32_t slot, std::int32_t n) {
  std::vector<NewToken> tokens;
  for (std::int32_t i = 0; i < n; ++i) tokens.push_back({.id = (i * 7 + slot) % 37, .slot = slot, .position = i});
  tokens.back().wants_logits = true;
  return tokens;
}

TEST(Decoder, StepsOfFewRowsComputeTheSameAsTheCpu) {
  const DecoderSizes sizes{.slots = 3, .capacity = 80, .chunk = 64};
  for (const models::LlamaConfig& config : kinds_of_models())
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      if (dtype == DType::bf16 && config.window == 0) continue;
      Model cuda(config, sizes, dtype, test::make_cuda_on_host_backend());
      Model cpu(config, sizes, dtype, make_backend({.device = "cpu", .threads = 1}));
      for (auto* model : {&cuda, &cpu}) {
        model->decoder.prefill(prompt_of(1, 61));
        // Slot 2 continues the beginning of slot 1.
        std::ranges::fill(model->decoder.cache_indirection().subspan(2 * 80, 30), 1);
      }
      for (std::int32_t step = 0; step < 5; ++step) {  // across the end of a tile of 64 keys
        const std::vector<NewToken> tokens{{.id = step, .slot = 1, .position = 61 + step},
                                           {.id = 5, .slot = 2, .position = 30 + step}};
        const auto actual = cuda.decoder.decode(tokens), expected = cpu.decoder.decode(tokens);
        ASSERT_EQ(actual.size(), expected.size());
        float greatest = 0;
        for (const float l : expected) greatest = std::max(greatest, std::abs(l));
        for (std::size_t i = 0; i < actual.size(); ++i)
          EXPECT_NEAR(actual[i], expected[i], (dtype == DType::fp32 ? 1e-5f : 4e-2f) * greatest) << step << ", " << i;
      }
    }
}

TEST(Decoder, DrawsTheSameTokensAsTheCpuAheadOfTheHost) {
  const DecoderSizes sizes{.slots = 3, .capacity = 40, .chunk = 16};
  for (const SamplingOptions& options :
       {SamplingOptions{}, SamplingOptions{.temperature = 1, .repetition_penalty = 1.5},
        SamplingOptions{.temperature = 0.8, .top_k = 20, .top_p = 0.9}}) {
    const auto tokens_of = [&](std::unique_ptr<Backend> backend, int ahead) {
      Model model(small_model(), sizes, DType::fp32, std::move(backend));
      Decoder& decoder = model.decoder;
      decoder.set_sampling({options, 9});
      std::vector<DrawnSequence> drawn;
      std::vector<NewToken> prompts;
      for (std::int32_t slot = 0; slot < 3; ++slot) {
        if (slot != 1)
          for (const NewToken& token : prompt_of(slot, 5 + 9 * slot)) prompts.push_back(token);
        drawn.push_back({.slot = slot, .prompt = 4, .reply = static_cast<std::uint32_t>(slot), .logits = slot / 2});
        for (const NewToken& token : prompt_of(slot / 2 * 2, 5 + 9 * (slot / 2 * 2)))
          drawn.back().occurred.push_back(token.id);
        drawn.back().position = static_cast<std::int32_t>(drawn.back().occurred.size());
      }
      std::ranges::fill(decoder.cache_indirection().subspan(40, 5), 0);  // slot 1 has the prompt of slot 0
      std::vector<std::int32_t> all;
      const std::vector<Choice> first = decoder.prefill(prompts, drawn);
      for (std::size_t i = 0; i < 3; ++i) {
        all.push_back(drawn[i].id = first[i].id);
        drawn[i].occurred.push_back(first[i].id);
        ++drawn[i].n_drawn;
      }
      decoder.begin_steps(drawn);
      int n_queued = 0, n_read = 0;
      while (n_read < 7) {
        while (n_queued < 7 && n_queued - n_read < ahead) {
          decoder.queue_step();
          ++n_queued;
        }
        EXPECT_TRUE(decoder.has_result());
        for (const Choice& choice : decoder.read_step()) all.push_back(choice.id);
        ++n_read;
      }
      EXPECT_FALSE(decoder.has_result());
      return all;
    };
    const auto expected = tokens_of(make_backend({.device = "cpu", .threads = 1}), 1);
    EXPECT_EQ(tokens_of(make_backend({.device = "cpu", .threads = 1}), LanguageModel::kMostQueued), expected);
    EXPECT_EQ(tokens_of(test::make_cuda_on_host_backend(), LanguageModel::kMostQueued), expected);
    EXPECT_GT(std::set(expected.begin(), expected.end()).size(), 3u);
  }
}

/// Norms and gated units are computed where the next product reads them, so a layer has seven stages.
TEST(Decoder, AStepHasTwoKernels) {
  models::LlamaConfig config = small_model();
  std::vector<std::size_t> n_stages;
  for (config.layers = 1; config.layers <= 3; ++config.layers) {
    Model model(config, {.slots = 1, .capacity = 16, .chunk = 8}, DType::bf16, test::make_cuda_on_host_backend());
    cuda_fibers::LaunchList list;
    model.decoder.decode(std::vector<NewToken>{{.id = 1}});
    EXPECT_EQ(std::set(list.launches.begin(), list.launches.end()).size(), 3u) << "a captured graph and two kernels";
    n_stages.push_back(list.launches.size() - 2);  // each is a launch on the host
  }
  EXPECT_EQ(n_stages, (std::vector<std::size_t>{9, 16, 23}));
}

}  // namespace
}  // namespace lockstep::generate
#endif
