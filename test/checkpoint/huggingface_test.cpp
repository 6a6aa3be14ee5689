// Hugging Face directories, written and read back: shards, types, tied embeddings, damaged files, and whether existing
// directories are replaced.
#include "checkpoint/huggingface.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "checkpoint/safetensors.h"
#include "test/checkpoint/support.h"
#include "test/support/named_tensors.h"

namespace lockstep::checkpoint::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

/// Its values are exact in bf16 and fp16.
NamedTensor tensor(const std::string& name, const Shape& shape, float first = 0.5f) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < shape.n_elements(); ++i) values.push_back(first + 0.25f * static_cast<float>(i % 64));
  return {name, shape, std::move(values)};
}

std::vector<NamedTensor> small_tensors() {
  return {tensor("model.norm.weight", {8}), tensor(kEmbedding, {16, 8}, -3.0f),
          tensor("model.layers.0.mlp.up_proj.weight", {12, 8}, 2.0f), tensor(kHead, {16, 8}, 7.0f)};
}

const NamedTensor* find(const std::vector<NamedTensor>& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &NamedTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

void expect_equal(const std::vector<NamedTensor>& got, const std::vector<NamedTensor>& expected) {
  EXPECT_EQ(got.size(), expected.size());
  for (const NamedTensor& tensor : expected) {
    const NamedTensor* const found = find(got, tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(found->shape, tensor.shape) << tensor.name;
    EXPECT_EQ(found->values(), tensor.values()) << tensor.name;
  }
}

class HuggingFace : public ::testing::Test {
 protected:
  std::string in(const std::string& name) const { return directory_ + "/" + name; }
  void write(std::vector<NamedTensor> tensors, const HuggingFaceOptions& options = {},
             const std::string& config = "{}") const {
    write_huggingface(directory_, std::move(tensors), {{"config.json", config}, {"tokenizer.json", "words"}}, options);
  }
  /// Writes a directory without write_huggingface.
  void write_plain(const std::vector<NamedTensor>& tensors, const std::string& config) const {
    fs::create_directories(directory_);
    write_safetensors(in("model.safetensors"), tensors, {});
    write_file(in("config.json"), config);
  }
  std::string read_error() const {
    return error_of([&] { read_huggingface(directory_); });
  }

  ScratchDirectory scratch_;
  std::string directory_ = scratch_.file("model");
};

TEST_F(HuggingFace, RoundTrip) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    write(small_tensors(), {.dtype = dtype}, "{ \"a\": 1}");
    ASSERT_TRUE(is_huggingface(directory_));
    const ModelFile file = read_model_file(directory_);
    expect_equal(file.tensors, small_tensors());
    EXPECT_EQ(file.dtype, dtype);
    EXPECT_EQ(file.config, "{ \"a\": 1}");
    EXPECT_TRUE(file.state.empty());
    EXPECT_EQ(bytes_of_file(in("tokenizer.json")), "words");
    const std::string weights = bytes_of_file(in("model.safetensors"));
    EXPECT_GT(weights.size(), small_tensors().size());
    write(file.tensors, {.dtype = dtype});
    EXPECT_EQ(bytes_of_file(in("model.safetensors")), weights);
    EXPECT_EQ(scratch_.n_entries(), 1u) << "nothing is left beside the directory";
  }
}

TEST_F(HuggingFace, ARunDirectoryIsNone) {
  write(small_tensors());
  EXPECT_FALSE(is_huggingface(scratch_.path()));
  EXPECT_FALSE(is_huggingface(in("config.json")));
  EXPECT_FALSE(is_huggingface(scratch_.file(std::string(300, 'x'))));
  fs::create_directory(in("checkpoints"));
  EXPECT_FALSE(is_huggingface(directory_));
}

TEST_F(HuggingFace, ShardsHaveAnIndex) {
  // In name order: 12 x 8, 8, 16 x 8 and 16 x 8 elements of 2 bytes. The second shard is full to the byte.
  std::vector<NamedTensor> tensors = small_tensors();
  tensors[2].name = "model.a.weight";
  tensors[0].name = "model.b.weight";
  write(tensors, {.dtype = DType::bf16, .max_shard_bytes = 256 + 192});
  EXPECT_FALSE(fs::exists(in("model.safetensors")));
  const auto index = nlohmann::json::parse(bytes_of_file(in("model.safetensors.index.json")));
  EXPECT_EQ(index.at("metadata").at("total_size"), 2 * (96 + 8 + 128 + 128));
  const nlohmann::json map{{kHead, "model-00001-of-00002.safetensors"},
                           {"model.a.weight", "model-00001-of-00002.safetensors"},
                           {"model.b.weight", "model-00002-of-00002.safetensors"},
                           {kEmbedding, "model-00002-of-00002.safetensors"}};
  EXPECT_EQ(index.at("weight_map"), map);
  expect_equal(read_huggingface(directory_).tensors, tensors);

  write(tensors, {.max_shard_bytes = 1});  // one tensor per file
  EXPECT_TRUE(fs::exists(in("model-00004-of-00004.safetensors")));
  EXPECT_FALSE(fs::exists(in("model-00002-of-00002.safetensors"))) << "the old directory is gone";
  expect_equal(read_huggingface(directory_).tensors, tensors);
}

TEST_F(HuggingFace, ValuesAreRoundedToNearestEven) {
  // Halfway between 1 and the next bf16 number, and between that and the one after it; the same for fp16.
  const std::vector<float> values{1 + 0x1p-8f, 1 + 0x3p-8f, 1 + 0x1p-11f, 1 + 0x3p-11f, 0x1p-25f, -0.0f, 65519.0f};
  const auto stored = [&](DType dtype) {
    write({{"w", {7}, values}}, {.dtype = dtype});
    return read_huggingface(directory_).tensors.at(0).values();
  };
  EXPECT_EQ(stored(DType::fp32), values);
  EXPECT_EQ(stored(DType::bf16), (std::vector<float>{1, 1 + 0x1p-6f, 1, 1, 0x1p-25f, -0.0f, 65536.0f}));
  EXPECT_EQ(stored(DType::fp16), (std::vector<float>{1 + 0x1p-8f, 1 + 0x3p-8f, 1, 1 + 0x1p-9f, 0, -0.0f, 65504.0f}));
  EXPECT_TRUE(std::signbit(stored(DType::fp16)[5]));
}

TEST_F(HuggingFace, AValueThatIsTooLargeIsAnError) {
  write(small_tensors());
  std::vector<NamedTensor> tensors = small_tensors();
  const auto set = [&](float value) {
    tensors[2] = lockstep::test::edited(tensors[2], [&](std::vector<float>& values) { values[5] = value; });
  };
  set(-65520.0f);
  const std::string error = error_of([&] { write(tensors, {.dtype = DType::fp16}); });
  EXPECT_EQ(error.find("model.layers.0.mlp.up_proj.weight has the value -65520, which is too large for fp16"), 0u)
      << error;
  expect_equal(read_huggingface(directory_).tensors, small_tensors());
  EXPECT_EQ(scratch_.n_entries(), 1u) << "no partial directory is left";
  set(INFINITY);  // stays infinite in fp16
  write(tensors, {.dtype = DType::fp16});
  set(3.4e38f);
  EXPECT_NE(error_of([&] { write(tensors, {.dtype = DType::bf16}); }).find("too large for bf16"), std::string::npos);
}

TEST_F(HuggingFace, TiedEmbeddingsHaveOneName) {
  const std::string tied = R"({"tie_word_embeddings": true})";
  const NamedTensor embedding = tensor(kEmbedding, {16, 8}), norm = tensor("model.norm.weight", {8});
  NamedTensor head = embedding;
  head.name = kHead;
  for (const std::vector<NamedTensor>& stored :
       {std::vector{norm, embedding}, std::vector{norm, head}, std::vector{norm, embedding, head}}) {
    write_plain(stored, tied);
    expect_equal(read_huggingface(directory_).tensors, {norm, embedding});
  }
  for (const char* untied : {"{}", R"({"tie_word_embeddings": false})", R"({"tie_word_embeddings": null})"}) {
    write_plain({norm, head}, untied);
    expect_equal(read_huggingface(directory_).tensors, {norm, head});
  }
  head = lockstep::test::edited(head, [](std::vector<float>& values) { values[3] = -values[3]; });
  write_plain({norm, embedding, head}, tied);
  EXPECT_NE(read_error().find("with different values, but its config.json sets tie_word_embeddings: set that to false"),
            std::string::npos)
      << read_error();
  head.read = embedding.read;
  head.shape = {8, 16};
  write_plain({norm, embedding, head}, tied);
  EXPECT_NE(read_error(), "");
}

TEST_F(HuggingFace, BuffersOfOldFilesAreLeftOut) {
  std::vector<NamedTensor> tensors = small_tensors();
  tensors.push_back(tensor("model.layers.0.self_attn.rotary_emb.inv_freq", {4}));
  write_plain(tensors, "{}");
  expect_equal(read_huggingface(directory_).tensors, small_tensors());
}

TEST_F(HuggingFace, TypesMayBeMixed) {
  write({tensor("a", {2})}, {.dtype = DType::bf16});
  fs::rename(in("model.safetensors"), in("model-a.safetensors"));
  write_safetensors(in("model-b.safetensors"), {tensor("b", {2}), tensor("c", {2})}, {}, DType::fp16);
  write_file(in("model.safetensors.index.json"),
             R"({"weight_map":{"a":"model-a.safetensors","b":"model-b.safetensors","c":"model-b.safetensors"}})");
  EXPECT_EQ(read_huggingface(directory_).dtype, DType::fp32);
  expect_equal(read_huggingface(directory_).tensors, {tensor("a", {2}), tensor("b", {2}), tensor("c", {2})});
}

TEST_F(HuggingFace, OtherTypesAreRefused) {
  write_plain({tensor("a.num_batches_tracked", {})}, "{}");
  EXPECT_NE(read_error().find("contains a.num_batches_tracked as I64; models are read in F32, BF16 and F16"),
            std::string::npos)
      << read_error();
}

TEST_F(HuggingFace, DamagedIndexesAreNamed) {
  write_plain({}, "{}");
  fs::remove(in("model.safetensors"));
  EXPECT_NE(read_error().find("has neither model.safetensors nor model.safetensors.index.json"), std::string::npos);
  write_safetensors(in("a.safetensors"), {tensor("x", {2}), tensor("y", {2})}, {});
  write_safetensors(in("b.safetensors"), {tensor("z", {2})}, {});
  write_safetensors(scratch_.file("c.safetensors"), {tensor("c", {2})}, {});
  const std::string good = R"("x":"a.safetensors","y":"a.safetensors","z":"b.safetensors")";
  const auto error_of_map = [&](const std::string& map) {
    write_file(in("model.safetensors.index.json"), R"({"weight_map":{)" + map + "}}");
    return read_error();
  };
  EXPECT_EQ(error_of_map(good), "");

  struct Case {
    const char *map, *message;
  };
  for (const Case& c : {
           Case{R"("x":"a.safetensors","z":"b.safetensors")",
                "a.safetensors contains y, which model.safetensors.index.json does not name"},
           Case{R"("x":"a.safetensors","y":"b.safetensors","z":"b.safetensors")",
                "contains y, which model.safetensors.index.json expects in b.safetensors"},
           Case{R"("x":"a.safetensors","y":"a.safetensors","q":"a.safetensors","z":"b.safetensors")",
                "a.safetensors lacks q"},
           Case{R"("x":"c.safetensors")", "c.safetensors is missing"},
           Case{R"("c":"../c.safetensors")",
                "\"../c.safetensors\"; expected the name of a .safetensors file in the same directory"},
           Case{R"("c":"..\/c.safetensors")", "expected the name of a .safetensors file"},
           Case{R"("c":"/etc/c.safetensors")", "expected the name of a .safetensors file"},
           Case{R"("c":"c.safetensors\u0000.safetensors")", "expected the name of a .safetensors file"},
           Case{R"("c":"config.json")", "expected the name of a .safetensors file"},
           Case{R"("c":7)", "c has no file name"},
           Case{"", "it has no weight_map"},
       }) {
    const std::string error = error_of_map(c.map);
    EXPECT_NE(error.find(c.message), std::string::npos) << c.map << "\n" << error;
    EXPECT_NE(error.find(directory_), std::string::npos) << error;
  }
  for (const char* index : {"[]", "7", "{}", R"({"weight_map":[]})", R"({"weight_map":"a"})"}) {
    write_file(in("model.safetensors.index.json"), index);
    EXPECT_NE(read_error().find("model.safetensors.index.json is damaged"), std::string::npos) << index;
  }
  for (const char* index : {"", "{", R"({"weight_map":{}} {)"}) {
    write_file(in("model.safetensors.index.json"), index);
    EXPECT_NE(read_error().find("model.safetensors.index.json is not valid JSON: line 1, column "), std::string::npos);
  }
  write_file(in("model.safetensors.index.json"), R"({"weight_map":{"a":"b.safetensors","a":"c.safetensors"}})");
  EXPECT_NE(read_error().find("an object has the key \"a\" twice"), std::string::npos) << read_error();
  write_file(in("model.safetensors.index.json"), "{");
  fs::resize_file(in("model.safetensors.index.json"), (64 << 20) + 1);  // a sparse file
  EXPECT_NE(read_error().find("expected at most 67108864"), std::string::npos) << read_error();
}

TEST_F(HuggingFace, DamagedConfigurationsAreNamed) {
  write_plain(small_tensors(), "{}");
  for (const char* config : {"[]", R"({"tie_word_embeddings": 1})"}) {
    write_file(in("config.json"), config);
    EXPECT_NE(read_error().find("config.json is damaged"), std::string::npos) << config;
  }
  for (const char* config : {"", "{"}) {
    write_file(in("config.json"), config);
    EXPECT_NE(read_error().find("config.json is not valid JSON: line 1, column "), std::string::npos) << config;
  }
  fs::resize_file(in("config.json"), (1 << 20) + 1);
  EXPECT_NE(read_error().find("expected at most 1048576"), std::string::npos) << read_error();
  fs::remove(in("config.json"));
  fs::create_directory(in("config.json"));
  EXPECT_NE(read_error().find("is not a regular file"), std::string::npos) << read_error();
}

TEST_F(HuggingFace, ATruncatedFileIsNamed) {
  write(small_tensors(), {.max_shard_bytes = 1});
  const std::string path = in("model-00003-of-00004.safetensors");
  const std::string whole = bytes_of_file(path);
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    write_file(path, whole.substr(0, size));
    EXPECT_NE(read_error().find(path), std::string::npos) << size;
  }
}

TEST_F(HuggingFace, OnlyDirectoriesOfModelsAreReplaced) {
  const std::vector<NamedTensor> tensors = small_tensors();
  const auto write_error = [&](const std::string& directory) {
    return error_of([&] { write_huggingface(directory, tensors, {{"config.json", "{}"}}, {}); });
  };
  fs::create_directory(directory_);
  EXPECT_EQ(write_error(directory_ + "/"), "") << "an empty one";
  write_file(in("notes.txt"), "of a user");
  EXPECT_NE(write_error(directory_).find("is not replaced, since it contains notes.txt"), std::string::npos);
  EXPECT_EQ(bytes_of_file(in("notes.txt")), "of a user");
  fs::remove(in("notes.txt"));
  fs::create_directory(in("config.json.d"));
  EXPECT_NE(write_error(directory_).find("since it contains config.json.d"), std::string::npos);
  fs::remove(in("config.json.d"));
  EXPECT_EQ(write_error(directory_), "");
  write_file(scratch_.file("file"), "");
  EXPECT_NE(write_error(scratch_.file("file")).find("is a file"), std::string::npos);
  EXPECT_NE(write_error(scratch_.file("no/model")).find("No such file"), std::string::npos);
  EXPECT_EQ(scratch_.n_entries(), 2u);

  fs::create_directory(directory_ + ".partial");  // after a crash
  write_file(directory_ + ".partial/model.safetensors.partial", "half of it");
  EXPECT_EQ(write_error(directory_), "");
  fs::create_directory_symlink(directory_, scratch_.file("link"));
  EXPECT_EQ(write_error(scratch_.file("link")), "");
  EXPECT_TRUE(fs::is_symlink(scratch_.file("link")));
  expect_equal(read_huggingface(scratch_.file("link")).tensors, tensors);
  EXPECT_EQ(scratch_.n_entries(), 3u);
}

TEST_F(HuggingFace, FilesOfTheTokenizerAreFound) {
  write(small_tensors());
  write_file(in("generation_config.json"), "{}");
  write_file(in("README.md"), "text");
  const std::map<std::string, std::string> expected{{"generation_config.json", "{}"}, {"tokenizer.json", "words"}};
  EXPECT_EQ(read_tokenizer_files(directory_), expected);
  EXPECT_NE(error_of([&] { read_tokenizer_files(in("none")); }).find("is not a directory"), std::string::npos);
}

// Its config.json ties the embeddings, and only lm_head.weight is stored, in bf16.
TEST(HuggingFaceModels, ReadsAModelOfAnotherProgram) {
  const ModelFile file = read_model_file("test/golden/llama-story");
  EXPECT_EQ(file.dtype, DType::bf16);
  EXPECT_EQ(file.tensors.size(), 20u);
  EXPECT_EQ(find(file.tensors, kHead), nullptr);
  const NamedTensor* const embedding = find(file.tensors, kEmbedding);
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->shape, (Shape{2048, 128}));
  // Values that the tests of the program that trained it list.
  EXPECT_EQ(embedding->values().at(50), 0.14453125f);
  EXPECT_EQ(find(file.tensors, "model.layers.0.input_layernorm.weight")->values().at(10), 0.18652344f);
  EXPECT_EQ(find(file.tensors, "model.layers.1.post_attention_layernorm.weight")->values().at(10), 0.32421875f);
  EXPECT_EQ(find(file.tensors, "model.norm.weight")->values().at(100), 0.73046875f);
  EXPECT_EQ(find(file.tensors, "model.layers.0.mlp.down_proj.weight")->values().at(100), -0.0625f);
}

}  // namespace
}  // namespace lockstep::checkpoint::test
