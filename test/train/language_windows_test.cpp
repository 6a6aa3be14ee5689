// The loss of each token of a document is the same whether the document has a window of its own or shares one with
// others: neither attention nor positions cross documents, and padding changes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "comm/world.h"
#include "data/text_set.h"
#include "inference/inference.h"
#include "lockstep/philox.h"
#include "models/llama_tensors.h"
#include "tasks/language_modelling/model_source.h"
#include "tasks/task.h"
#include "test/data/text_files.h"

namespace lockstep {
namespace {

constexpr int kVocabulary = 61, kLength = 48, kDocuments = 60;
constexpr const char* kModels[] = {
    R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 61, "hidden_size": 42, "intermediate_size": 50,
        "num_hidden_layers": 2, "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 6,
        "max_position_embeddings": 64, "tie_word_embeddings": true, "rope_theta": 100.0})",
    R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 61, "hidden_size": 40, "intermediate_size": 50,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 64, "tie_word_embeddings": false, "rope_theta": 100.0})"};

/// Documents of 2 to 30 tokens, and the position of each in the stream.
struct Documents {
  data::TestText text{.documents = {}, .vocabulary_size = kVocabulary};
  std::vector<std::int64_t> begins{0};

  Documents() {
    const Philox random(3, RandomPurpose::synthetic, 0, 0);
    std::uint64_t i = 0;
    while (std::ssize(text.documents) < kDocuments) {
      data::Ids ids(2 + static_cast<std::size_t>(29 * random.uniform(i++)));
      for (std::int32_t& id : ids) id = static_cast<std::int32_t>(kVocabulary * random.uniform(i++));
      ids.back() = 0;
      begins.push_back(begins.back() + std::ssize(ids));
      text.documents.push_back(std::move(ids));
    }
  }
};

/// Weights with standard deviation 0.2, so that a wrong rotation is noticed.
checkpoint::ModelFile weights_of(const models::LlamaConfig& model) {
  checkpoint::ModelFile file{.path = "model", .state = {}, .tensors = {}};
  for (const auto& [name, shape] : models::llama_tensors(model)) {
    std::vector<float> values;
    const Philox random(1, RandomPurpose::weights, name_hash(name), 0);
    for (std::int64_t i = 0; i < shape.n_elements(); ++i)
      values.push_back(
          static_cast<float>((shape.rank() == 1 ? 1 : 0) + 0.2 * random.normal(static_cast<std::uint64_t>(i))));
    file.tensors.emplace_back(name, shape, std::move(values));
  }
  return file;
}

/// The losses of all windows: (n_samples, kLength).
std::vector<float> losses_of(const char* model, const std::string& path, bool pack) {
  Config config;
  config.model.family = "llama";
  config.model.config = model;
  config.data.sequence_length = kLength;
  config.data.pack = pack;
  const std::shared_ptr<const data::TextSet> set =
      data::open_text_set(path, 0, 0, {.sequence_length = kLength, .pack = pack});
  const auto task = tasks::make_language_modelling(config, set, nullptr);
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const std::int64_t n = set->info().n_samples;
  inference::Inference inference(config, *task, set->fields(), *backend, n);
  inference.load(weights_of(tasks::model_source(config.model)), *comm::single_world());

  std::vector<std::vector<std::byte>> memory;
  data::Batch batch{.n_samples = n, .fields = {}};
  for (const data::Field& field : set->fields()) memory.emplace_back(static_cast<std::size_t>(n) * field.size_bytes());
  for (std::int64_t i = 0; i < n; ++i) {
    std::vector<std::span<std::byte>> fields;
    for (auto& field : memory) {
      const std::size_t n_bytes = field.size() / static_cast<std::size_t>(n);
      fields.push_back(std::span(field).subspan(static_cast<std::size_t>(i) * n_bytes, n_bytes));
    }
    set->read(i, 0, fields);
  }
  for (const auto& field : memory) batch.fields.emplace_back(field);
  const inference::Inference::Result result = inference.run(batch);
  double sum = 0;
  for (const float loss : result.outputs) sum += loss;
  EXPECT_NEAR(result.sums.loss, sum, 1e-5 * sum);
  return {result.outputs.begin(), result.outputs.end()};
}

class LanguageWindows : public testing::TestWithParam<int> {};

TEST_P(LanguageWindows, PackedDocumentsHaveTheLossesOfSingleOnes) {
  const char* const model = kModels[GetParam()];
  const Documents documents;
  const data::TemporaryFolder folder;
  const std::string path = folder / "text.h5";
  data::write_test_text(path, documents.text);
  const std::vector<float> packed = losses_of(model, path, true), single = losses_of(model, path, false);
  ASSERT_EQ(std::ssize(single), kDocuments * kLength);
  int n_compared = 0, n_inside = 0;
  for (int d = 0; d < kDocuments; ++d) {
    const auto at = static_cast<std::size_t>(d);
    const std::int64_t begin = documents.begins[at], end = documents.begins[at + 1];
    if (begin / kLength != (end - 1) / kLength || end > std::ssize(packed)) continue;  // cut by the end of a window
    n_inside += begin % kLength > 0 && end % kLength > 0;
    for (std::int64_t t = 0; t < end - begin; ++t) {
      const float of_packed = packed[static_cast<std::size_t>(begin + t)];
      const float of_single = single[at * kLength + static_cast<std::size_t>(t)];
      if (t + 1 == end - begin) {
        EXPECT_EQ(of_packed, 0) << "the last token of document " << d << " predicts nothing";
        EXPECT_EQ(of_single, 0);
        continue;
      }
      EXPECT_GT(of_single, 0);
      EXPECT_NEAR(of_packed, of_single, 1e-5 * of_single) << "document " << d << ", token " << t;
      ++n_compared;
    }
    for (std::int64_t t = end - begin; t < kLength; ++t)
      EXPECT_EQ(single[at * kLength + static_cast<std::size_t>(t)], 0) << "padding of document " << d;
  }
  EXPECT_GT(n_inside, 10);
  EXPECT_GT(n_compared, 200);
}

INSTANTIATE_TEST_SUITE_P(Models, LanguageWindows, testing::Values(0, 1));

}  // namespace
}  // namespace lockstep
