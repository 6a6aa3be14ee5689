// timeout: 300
// Tokenizers, compared with the vectors of other programs: llama.cpp, Hugging Face's library, llama2.c.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "lockstep/error.h"
#include "test/text/golden.h"

namespace lockstep::text {
namespace {

using golden::encode;
using golden::Ids;
using golden::Json;

std::vector<std::string> llamacpp_texts() {
  const std::string separator = "\n__ggml_vocab_test__\n";
  const std::string all = read_file(golden::kFolder + "llamacpp.inp");
  std::vector<std::string> texts;
  for (std::size_t begin = 0, end; (end = all.find(separator, begin)) != std::string::npos;
       begin = end + separator.size())
    texts.push_back(all.substr(begin, end - begin));
  return texts;
}

std::vector<Ids> lines_of_ids(const std::string& path) {
  std::vector<Ids> lines;
  std::istringstream in(read_file(path));
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    lines.emplace_back();
    for (std::int32_t id; words >> id;) lines.back().push_back(id);
  }
  return lines;
}

void expect_vectors(const Tokenizer& tokenizer, const Json& texts, const Json& vectors) {
  ASSERT_EQ(texts.size(), vectors["ids"].size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    const auto ids = vectors["ids"][i].get<Ids>();
    ASSERT_EQ(encode(tokenizer, text), ids) << text;
    if (vectors.contains("decoded")) {
      ASSERT_EQ(tokenizer.decode(ids), vectors["decoded"][i].get<std::string>());
    }
  }
}

class ByteLevelTokenizer : public testing::TestWithParam<std::string> {};

TEST_P(ByteLevelTokenizer, GivesTheIdsOfLlamaCppAndHuggingFace) {
  const Tokenizer tokenizer = golden::open(GetParam());
  const std::vector<std::string> texts = llamacpp_texts();
  const std::vector<Ids> expected = lines_of_ids(golden::kFolder + "llamacpp." + GetParam() + ".out");
  ASSERT_EQ(texts.size(), 46u);
  ASSERT_EQ(expected.size(), 46u);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(encode(tokenizer, texts[i]), expected[i]) << texts[i];
    EXPECT_EQ(tokenizer.decode(expected[i]), texts[i]);
  }
  const Json vectors = Json::parse(golden::unzipped("texts.json.gz"));
  expect_vectors(tokenizer, vectors["texts"], vectors[GetParam()]);
}

INSTANTIATE_TEST_SUITE_P(, ByteLevelTokenizer, testing::Values("gpt2", "qwen2", "smollm"));

TEST(Tokenizer, GivesTheIdsOfHuggingFaceWithByteFallback) {
  const Json vectors = Json::parse(golden::unzipped("texts.json.gz"));
  expect_vectors(golden::open("llama-story"), vectors["texts"], vectors["llama-story"]);
}

TEST(Tokenizer, GivesTheIdsOfLlama2c) {
  const Json vectors = Json::parse(golden::unzipped("llama2c.json.gz"));
  const Tokenizer tokenizer = golden::open("tok512");
  expect_vectors(tokenizer, vectors["texts"], vectors);
  for (const Json& text : vectors["texts"]) {
    const Ids ids = encode(tokenizer, text.get<std::string>());
    EXPECT_EQ(tokenizer.decode(tokenizer.without_template(ids)), text.get<std::string>());
  }
}

/// Every supported option, in small tokenizers.
TEST(Tokenizer, GivesTheIdsOfHuggingFaceForAllOptions) {
  const Json variants = Json::parse(golden::unzipped("variants.json.gz"));
  EXPECT_EQ(variants.size(), 19u);
  for (const Json& variant : variants) {
    const auto name = variant["name"].get<std::string>();
    SCOPED_TRACE(name);
    expect_vectors(Tokenizer::parse(name, variant["tokenizer"].dump()), variant["texts"], variant);
  }
}

TEST(Tokenizer, ReplacesBytesThatAreNotUtf8) {
  const Tokenizer tokenizer = golden::open("gpt2");
  EXPECT_EQ(encode(tokenizer, "a\xff\xe2\x82z\xc0\xaf"),
            encode(tokenizer, "a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd\xef\xbf\xbd"));
}

TEST(Tokenizer, AddsAndRemovesTheTemplate) {
  const Tokenizer tokenizer = golden::open("llama-story");
  const Ids with = encode(tokenizer, "Once upon a time"),
            without = encode(tokenizer, "Once upon a time", TemplateTokens::omit);
  ASSERT_EQ(with.size(), without.size() + 1);
  EXPECT_EQ(with.front(), 1);
  EXPECT_TRUE(std::equal(without.begin(), without.end(), with.begin() + 1));
  EXPECT_TRUE(std::ranges::equal(tokenizer.without_template(with), without));
  EXPECT_TRUE(std::ranges::equal(tokenizer.without_template(without), without));  // there is none to remove
  EXPECT_EQ(tokenizer.decode(without), "Once upon a time");
  EXPECT_EQ(encode(tokenizer, ""), Ids{1});
  EXPECT_EQ(encode(tokenizer, "", TemplateTokens::omit), Ids{});
}

TEST(Tokenizer, KnowsItsVocabularyAndItsBeginAndEnd) {
  const Tokenizer gpt2 = golden::open("gpt2"), story = golden::open("llama-story"), small = golden::open("tok512");
  EXPECT_EQ(gpt2.vocabulary_size(), 50257);
  EXPECT_EQ(gpt2.end_token(), 50256);  // the usual name
  EXPECT_EQ(gpt2.begin_token(), std::nullopt);
  EXPECT_EQ(story.vocabulary_size(), 2048);
  EXPECT_EQ(story.begin_token(), 1);  // the token that the template adds
  EXPECT_EQ(story.end_token(), std::nullopt);
  EXPECT_EQ(small.vocabulary_size(), 512);
  EXPECT_EQ(small.begin_token(), 1);
  EXPECT_EQ(small.end_token(), 2);
  EXPECT_EQ(small.path(), golden::kFolder + "tok512.bin");
  EXPECT_EQ(small.content(), read_file(small.path()));
}

TEST(Tokenizer, TakesBeginAndEndFromTheConfigBesideIt) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "tokenizer-with-config";
  fs::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << golden::unzipped("llama-story.json.gz");
  const auto write_config = [&](const std::string& text) { std::ofstream(folder / "tokenizer_config.json") << text; };
  write_config(R"({"bos_token": null, "eos_token": {"content": "<|end_story|>", "lstrip": false}})");
  EXPECT_EQ(Tokenizer::open(folder).end_token(), 2);
  EXPECT_EQ(Tokenizer::open(folder).begin_token(), 1);
  write_config(R"({"bos_token": "<unk>", "eos_token": "<|start_story|>"})");
  EXPECT_EQ(Tokenizer::open(folder / "tokenizer.json").end_token(), 1);
  EXPECT_EQ(Tokenizer::open(folder).begin_token(), 0);
  for (const std::string bad : {R"({"eos_token": "nothing"})", R"({"eos_token": 3})", "[]", "{"}) {
    write_config(bad);
    try {
      Tokenizer::open(folder);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::model_file_damaged) << error.what();
      EXPECT_NE(std::string(error.what()).find("tokenizer_config.json"), std::string::npos) << error.what();
    }
  }
  fs::remove_all(folder);
}

TEST(Tokenizer, HashDependsOnTheTokenizerAndNotOnItsLayout) {
  const Json json = Json::parse(golden::unzipped("llama-story.json.gz"));
  const auto hash = [](const Json& changed, int indent = -1) {
    return Tokenizer::parse("t", changed.dump(indent)).hash();
  };
  const std::string expected = hash(json);
  EXPECT_EQ(expected.size(), 16u);
  EXPECT_EQ(hash(json, 2), expected);
  Json same = json;
  for (Json& merge : same["model"]["merges"]) {  // the newer form
    const auto line = merge.get<std::string>();
    merge = {line.substr(0, line.find(' ')), line.substr(line.find(' ') + 1)};
  }
  same["decoder"] = nullptr;
  EXPECT_EQ(hash(same), expected);

  const auto changed = [&](auto change) {
    Json other = json;
    change(other);
    return hash(other);
  };
  EXPECT_NE(changed([](Json& j) { std::swap(j["model"]["merges"][0], j["model"]["merges"][1]); }), expected);
  EXPECT_NE(changed([](Json& j) { std::swap(j["model"]["vocab"]["a"], j["model"]["vocab"]["b"]); }), expected);
  EXPECT_NE(changed([](Json& j) { j["normalizer"] = nullptr; }), expected);
  EXPECT_NE(changed([](Json& j) { j["pre_tokenizer"] = {{"type", "Digits"}, {"individual_digits", true}}; }), expected);
  EXPECT_NE(changed([](Json& j) { j["post_processor"] = nullptr; }), expected);
  EXPECT_NE(changed([](Json& j) { j["added_tokens"][1]["rstrip"] = true; }), expected);
  EXPECT_NE(changed([](Json& j) { j["added_tokens"][1]["normalized"] = false; }), expected);
  for (const char* flag : {"byte_fallback", "fuse_unk"})
    EXPECT_NE(changed([&](Json& j) { j["model"][flag] = false; }), expected) << flag;
  EXPECT_NE(changed([](Json& j) { j["model"]["ignore_merges"] = true; }), expected);
}

TEST(Tokenizer, RefusesIdsThatNoTokenHas) {
  const auto message = [](const Tokenizer& tokenizer, const Ids& ids) -> std::string {
    try {
      tokenizer.decode(ids);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data_source);
      return error.what();
    }
    return "";
  };
  const Tokenizer tokenizer = golden::open("tok512");
  EXPECT_EQ(message(tokenizer, {5, 512}), "the id 512 is outside of the vocabulary, which has the ids 0 to 511");
  EXPECT_EQ(message(tokenizer, {-1}), "the id -1 is outside of the vocabulary, which has the ids 0 to 511");
  const Tokenizer gaps = Tokenizer::parse("gaps", R"({"model": {"vocab": {"a": 0, "b": 2}, "merges": []}})");
  EXPECT_EQ(gaps.vocabulary_size(), 3);
  EXPECT_EQ(message(gaps, {1}), "no token of the vocabulary has the id 1");
  EXPECT_EQ(gaps.decode(Ids{0, 2}), "a b");  // without a decoder, Hugging Face's library puts spaces between tokens
}

TEST(Tokenizer, EncodesInSeveralThreads) {
  const Tokenizer tokenizer = golden::open("qwen2");
  const Json texts = Json::parse(golden::unzipped("texts.json.gz"))["texts"];
  std::vector<std::vector<Ids>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results)
    threads.emplace_back([&] {
      for (int round = 0; round < 3; ++round)
        for (const Json& text : texts) result.push_back(encode(tokenizer, text.get_ref<const std::string&>()));
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
  EXPECT_EQ(results[0][0], encode(tokenizer, texts[0].get<std::string>()));
}

}  // namespace
}  // namespace lockstep::text
