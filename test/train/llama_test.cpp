// Trained models of the Llama family on the CPU: their logits, and the text that they generate, token by token.
// test/golden/README.md tells where the models and the expected values come from.
#include "models/llama.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/model_file.h"
#include "graph/parameter_arena.h"
#include "layers/layers.h"
#include "lockstep/backend.h"

namespace lockstep {
namespace {

using Ids = std::vector<std::int32_t>;

/// The logits of one sequence, which has a fixed number of places.
class Logits {
 public:
  Logits(const checkpoint::ModelFile& file, std::int64_t n_places)
      : config_(models::parse_llama_config(file.config, file.path)),
        n_places_(n_places),
        backend_(make_backend({.device = "cpu", .threads = 1})),
        stream_(backend_->make_stream()),
        graph_({.mode = graph::Mode::inference, .batch = 1, .layout_batch = 1}, table_) {
    const auto field = [&](const char* name) {
      return graph_.memory().add(name, static_cast<std::size_t>(n_places) * sizeof(std::int32_t), /*persistent=*/true);
    };
    tokens_ = field("tokens");
    positions_ = field("positions");
    start_ = field("document_start");
    const graph::ActivationId hidden = models::llama(
        graph_, config_,
        {.sequence_length = n_places, .tokens = tokens_, .positions = positions_, .document_start = start_});
    out_ = layers::linear(graph_, hidden, "lm_head",
                          {.out_features = config_.vocabulary,
                           .bias = false,
                           .weight = models::llama_head(config_) + ".weight",
                           .initial = models::llama_initializer(config_)});
    graph_.plan(*backend_);
    std::vector<graph::ParameterId> order;
    for (std::size_t i = 0; i < table_.parameters().size(); ++i) order.push_back(static_cast<graph::ParameterId>(i));
    table_.fix_order(order);
    arena_ = std::make_unique<graph::ParameterArena>(table_, DType::fp32, *backend_);
    activations_ = backend_->allocate(graph_.memory().size_bytes(), "activations");
    workspace_ = backend_->allocate(std::max<std::size_t>(graph_.workspace_bytes(), 64), "workspace");
    load(file);
    graph_.bind({.parameters = arena_->masters(),
                 .activations = static_cast<std::byte*>(activations_->data()),
                 .workspace = workspace_->data()});
    for (std::int64_t i = 0; i < n_places; ++i) {
      graph_.tensor<std::int32_t>(positions_)[i] = static_cast<std::int32_t>(i);
      graph_.tensor<std::int32_t>(start_)[i] = 0;
    }
  }

  /// (n_places, vocabulary). The logits after the last id belong to padding, to which no earlier place attends.
  const float* operator()(const Ids& ids) {
    std::fill_n(graph_.tensor<std::int32_t>(tokens_), n_places_, 0);
    std::copy(ids.begin(), ids.end(), graph_.tensor<std::int32_t>(tokens_));
    graph_.forward(*stream_);
    stream_->synchronize();
    return graph_.tensor<const float>(graph_.activation(out_).data);
  }
  std::int64_t vocabulary() const { return config_.vocabulary; }

 private:
  void load(const checkpoint::ModelFile& file) {
    for (const graph::Parameter& p : table_.parameters()) {
      std::vector<float> packed(p.n_elements);
      for (const graph::ParameterPart& part : p.parts) {
        const auto tensor = std::ranges::find(file.tensors, part.name, &checkpoint::NamedTensor::name);
        ASSERT_NE(tensor, file.tensors.end()) << part.name;
        ASSERT_EQ(tensor->shape, part.shape) << part.name;
        graph::pack_part(p, part, tensor->values(), packed);
      }
      std::ranges::copy(packed, arena_->edit() + p.begin);
    }
  }

  models::LlamaConfig config_;
  std::int64_t n_places_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  graph::ParameterTable table_;
  graph::Graph graph_;
  graph::TensorId tokens_ = graph::kNoTensor, positions_ = graph::kNoTensor, start_ = graph::kNoTensor;
  graph::ActivationId out_ = graph::kNoActivation;
  std::unique_ptr<graph::ParameterArena> arena_;
  std::unique_ptr<Memory> activations_, workspace_;
};

/// Continues `ids` with the most probable token until there are `n`.
Ids greedy(Logits& logits, Ids ids, std::size_t n) {
  while (ids.size() < n) {
    const float* last = logits(ids) + (static_cast<std::int64_t>(ids.size()) - 1) * logits.vocabulary();
    ids.push_back(static_cast<std::int32_t>(std::max_element(last, last + logits.vocabulary()) - last));
  }
  return ids;
}

TEST(LlamaStory, GivesItsLogits) {
  const auto golden = nlohmann::json::parse(read_file("test/golden/llama-story/golden.json"));
  const Ids prompt = golden["prompt_ids"].get<Ids>();
  Logits logits(checkpoint::read_huggingface("test/golden/llama-story"), std::ssize(prompt));
  const std::string bytes = read_file("test/golden/llama-story/prompt_logits_f32.bin");
  std::vector<float> expected(bytes.size() / sizeof(float));
  std::memcpy(expected.data(), bytes.data(), bytes.size());
  ASSERT_EQ(std::ssize(expected), std::ssize(prompt) * logits.vocabulary());
  const float* const found = logits(prompt);
  double greatest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    greatest = std::max(greatest, std::abs(double{found[i]} - double{expected[i]}));
  EXPECT_LT(greatest, 1e-4);
}

TEST(LlamaStory, ContinuesItsText) {
  const auto golden = nlohmann::json::parse(read_file("test/golden/llama-story/golden.json"));
  const Ids expected = golden["greedy_ids"].get<Ids>();
  Logits logits(checkpoint::read_huggingface("test/golden/llama-story"), std::ssize(expected));
  EXPECT_EQ(greedy(logits, golden["prompt_ids"].get<Ids>(), expected.size()), expected);
}

TEST(Stories260K, ContinuesItsText) {
  const auto golden = nlohmann::json::parse(read_file("test/golden/stories260K/expected_greedy_ids.json"));
  const Ids expected = golden["greedy_ids_including_bos"].get<Ids>();
  Logits logits(checkpoint::read_llama2c("test/golden/stories260K/stories260K.bin"), std::ssize(expected));
  EXPECT_EQ(greedy(logits, {expected.front()}, expected.size()), expected);
}

}  // namespace
}  // namespace lockstep
