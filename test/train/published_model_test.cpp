// The files next to the weights of a published model: what is written if nothing could be copied.
#include "train/published_model.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"

namespace lockstep::train {
namespace {

using Json = nlohmann::json;

models::LlamaConfig model_with(std::int64_t begin, std::vector<std::int64_t> ends) {
  models::LlamaConfig model;
  model.positions = 512;
  model.begin_token = begin;
  model.end_tokens = std::move(ends);
  return model;
}

/// A tokenizer whose only special token is <|endoftext|>, with id 0.
Files with_sample_tokenizer() { return {{"tokenizer.json", read_file("data/samples/tokenizer.json")}}; }

TEST(PublishedModel, WritesTheFilesOfATokenizer) {
  Files files = with_sample_tokenizer();
  complete_files(files, model_with(-1, {}), 0, "");
  EXPECT_EQ(Json::parse(files.at("tokenizer_config.json")), Json({{"eos_token", "<|endoftext|>"},
                                                                  {"clean_up_tokenization_spaces", false},
                                                                  {"model_max_length", 512},
                                                                  {"tokenizer_class", "PreTrainedTokenizerFast"}}));
  EXPECT_EQ(Json::parse(files.at("special_tokens_map.json")), Json({{"eos_token", "<|endoftext|>"}}));
  EXPECT_EQ(Json::parse(files.at("generation_config.json")), Json({{"eos_token_id", 0}}));
  EXPECT_FALSE(files.contains("chat_template.jinja"));
}

TEST(PublishedModel, NamesTheEndOfTheDataBesideThatOfTheModel) {
  Files files = with_sample_tokenizer();
  complete_files(files, model_with(3, {7}), 0, "");
  EXPECT_EQ(Json::parse(files.at("generation_config.json")), Json({{"bos_token_id", 3}, {"eos_token_id", {7, 0}}}));
  EXPECT_FALSE(Json::parse(files.at("tokenizer_config.json")).contains("bos_token"));  // 3 is an ordinary token
}

TEST(PublishedModel, KeepsWhatIsThere) {
  Files files = with_sample_tokenizer();
  files["tokenizer_config.json"] = R"({"chat_template": "{{ messages }}"})";
  files["generation_config.json"] = "{}";
  const Files before = files;
  complete_files(files, model_with(1, {2}), 0, "{{ messages }}");  // the template is in tokenizer_config.json
  EXPECT_EQ(files, before);
  complete_files(files, model_with(1, {2}), 0, "{{ other }}");
  EXPECT_EQ(files.at("chat_template.jinja"), "{{ other }}");
  EXPECT_EQ(files.size(), before.size() + 1);
}

TEST(PublishedModel, HasNoFilesOfATokenizerThatIsMissing) {
  Files files;
  complete_files(files, model_with(-1, {}), -1, "");
  EXPECT_TRUE(files.empty());
  files["tokenizer.json"] = "words";
  complete_files(files, model_with(1, {2}), -1, "");
  EXPECT_EQ(files.size(), 2u);
  EXPECT_EQ(Json::parse(files.at("generation_config.json")), Json({{"bos_token_id", 1}, {"eos_token_id", 2}}));
}

}  // namespace
}  // namespace lockstep::train
