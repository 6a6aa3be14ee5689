// llama2.c files: the position of each tensor, the permutation of queries and keys, and files whose sizes do not add
// up.
#include "checkpoint/model_file.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "test/checkpoint/support.h"

namespace lockstep::checkpoint::test {
namespace {

/// Width, FFN width, layers, heads, key-value heads, vocabulary, positions.
using Sizes = std::array<std::int32_t, 7>;
constexpr Sizes kTied{8, 6, 2, 2, 1, 5, 3}, kUntied{8, 6, 2, 2, 1, -5, 3};
constexpr int kFloats = 5 * 8 + 2 * (8 + 64 + 32 + 32 + 64 + 8 + 3 * 48) + 8 + 2 * 3 * 2;

std::string bytes_of(const void* data, std::size_t n_bytes) { return {static_cast<const char*>(data), n_bytes}; }

/// The value of each element is its index in the file.
std::string file_of(const Sizes& sizes, int n_floats) {
  std::string file = bytes_of(sizes.data(), sizeof sizes);
  for (int i = 0; i < n_floats; ++i) {
    const auto value = static_cast<float>(i);
    file += bytes_of(&value, sizeof value);
  }
  return file;
}

class Llama2c : public ::testing::Test {
 protected:
  std::string error_with(const std::string& bytes) {
    write_file(path_, bytes);
    return error_of([&] { read_llama2c(path_); });
  }
  const NamedTensor& tensor(const ModelFile& file, const std::string& name) {
    return *std::ranges::find(file.tensors, name, &NamedTensor::name);
  }

  ScratchDirectory scratch_;
  std::string path_ = scratch_.file("model.bin");
};

TEST_F(Llama2c, TensorsFollowOneAnother) {
  write_file(path_, file_of(kTied, kFloats));
  const ModelFile file = read_llama2c(path_);
  ASSERT_EQ(file.tensors.size(), 2u + 9u * 2u);
  struct Case {
    const char* name;
    Shape shape;
    float first;
  };
  for (const Case& c :
       {Case{"model.embed_tokens.weight", {5, 8}, 0}, Case{"model.layers.0.input_layernorm.weight", {8}, 40},
        Case{"model.layers.1.input_layernorm.weight", {8}, 48},
        Case{"model.layers.0.self_attn.q_proj.weight", {8, 8}, 56},
        Case{"model.layers.1.self_attn.q_proj.weight", {8, 8}, 120},
        Case{"model.layers.0.self_attn.k_proj.weight", {4, 8}, 184},
        Case{"model.layers.0.self_attn.v_proj.weight", {4, 8}, 248},
        Case{"model.layers.0.self_attn.o_proj.weight", {8, 8}, 312},
        Case{"model.layers.0.post_attention_layernorm.weight", {8}, 440},
        Case{"model.layers.0.mlp.gate_proj.weight", {6, 8}, 456},
        Case{"model.layers.0.mlp.down_proj.weight", {8, 6}, 552},
        Case{"model.layers.1.mlp.up_proj.weight", {6, 8}, 696}, Case{"model.norm.weight", {8}, 744}}) {
    EXPECT_EQ(tensor(file, c.name).shape, c.shape) << c.name;
    EXPECT_EQ(tensor(file, c.name).values().at(0), c.first) << c.name;
  }
  const nlohmann::json config = nlohmann::json::parse(file.config);
  EXPECT_EQ(config.at("tie_word_embeddings"), true);
  EXPECT_EQ(config.at("rms_norm_eps"), 1e-5);
  EXPECT_EQ(config.at("max_position_embeddings"), 3);
}

// The pairs (0, 1) and (2, 3) of a head of 4 become the pairs (0, 2) and (1, 3).
TEST_F(Llama2c, RowsOfQueriesAndKeysArePermuted) {
  write_file(path_, file_of(kTied, kFloats));
  const ModelFile file = read_llama2c(path_);
  const auto rows = [&](const std::string& name) {
    std::vector<float> first;
    const NamedTensor& t = tensor(file, "model.layers.0.self_attn." + name + ".weight");
    const std::vector<float> values = t.values();
    for (std::size_t i = 0; i < values.size(); i += 8) {
      first.push_back((values[i] - (name == "q_proj" ? 56 : name == "k_proj" ? 184 : 248)) / 8);
      EXPECT_EQ(values[i + 7], values[i] + 7) << "a row is moved as a whole";
    }
    return first;
  };
  EXPECT_EQ(rows("q_proj"), (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(rows("k_proj"), (std::vector<float>{0, 2, 1, 3}));
  EXPECT_EQ(rows("v_proj"), (std::vector<float>{0, 1, 2, 3}));
}

TEST_F(Llama2c, ANegativeVocabularyMeansALastMatrix) {
  write_file(path_, file_of(kUntied, kFloats + 40));
  const ModelFile file = read_llama2c(path_);
  EXPECT_EQ(tensor(file, "lm_head.weight").shape, (Shape{5, 8}));
  EXPECT_EQ(tensor(file, "lm_head.weight").values().at(0), static_cast<float>(kFloats));
  EXPECT_EQ(nlohmann::json::parse(file.config).at("tie_word_embeddings"), false);
}

TEST_F(Llama2c, FilesThatDoNotAddUpAreRefused) {
  EXPECT_EQ(error_with(file_of(kTied, kFloats)), "");
  EXPECT_NE(error_with("short").find("is not a file of llama2.c: it has 5 bytes"), std::string::npos);
  EXPECT_NE(error_with(file_of(kTied, kFloats - 1)).find("is truncated or not a file of llama2.c"), std::string::npos);
  EXPECT_NE(error_with(file_of(kTied, kFloats + 1)), "");
  EXPECT_NE(error_with(file_of(kUntied, kFloats)), "") << "the last matrix is missing";
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  for (std::size_t i = 0; i < kTied.size(); ++i)
    for (const std::int32_t wrong : {0, -1, -kMost - 1, 7, kMost, kMost - 1}) {
      Sizes sizes = kTied;
      sizes[i] = wrong;
      EXPECT_NE(error_with(file_of(sizes, kFloats)).find(path_), std::string::npos) << i << " " << wrong;
    }
  for (const std::int32_t most : {kMost, kMost - 1, 1 << 30}) {  // 64-bit products and sums overflow
    const Sizes sizes{most, most, most, 1, 1, most, most};
    EXPECT_NE(error_with(file_of(sizes, kFloats)), "");
  }
  EXPECT_NE(error_with(file_of({0x616b3432, 1, 2, 2, 1, 5, 3}, kFloats)).find("has format 1 of llama2.c"),
            std::string::npos);
}

TEST(Llama2cModels, ReadsAModelOfAnotherProgram) {
  const ModelFile file = read_llama2c("test/golden/stories260K/stories260K.bin");
  EXPECT_EQ(file.tensors.size(), 2u + 9u * 5u);
  std::size_t n_parameters = 0;
  for (const NamedTensor& tensor : file.tensors) n_parameters += tensor.n_elements();
  EXPECT_EQ(n_parameters, 260032u);
}

}  // namespace
}  // namespace lockstep::checkpoint::test
