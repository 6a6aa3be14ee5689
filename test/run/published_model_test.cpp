// The files next to the weights of a published model: what is written if nothing could be copied.
#include "run/published_model.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"

namespace lockstep::run {
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

TEST(PublishedModel, NamesTheTokenThatEndsAnswers) {
  Files files = with_sample_tokenizer();
  Json tokenizer = Json::parse(files.at("tokenizer.json"));
  tokenizer["added_tokens"].push_back({{"id", 1025}, {"content", "<|im_end|>"}});
  files["tokenizer.json"] = tokenizer.dump();
  files["config.json"] = R"({"eos_token_id": 0, "vocab_size": 1026})";
  files["generation_config.json"] = R"({"eos_token_id": [0, 7], "top_p": 0.9})";
  files["tokenizer_config.json"] = R"({"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"})";
  files["special_tokens_map.json"] = R"({"eos_token": {"content": "<|endoftext|>"}})";
  files["chat_template.jinja"] = "{{ messages[0].content }}<|im_end|>";
  const Files before = files;
  add_answer_end(files, -1);
  EXPECT_EQ(files, before);
  add_answer_end(files, 1025);
  EXPECT_EQ(Json::parse(files.at("config.json")), Json({{"eos_token_id", {1025, 0}}, {"vocab_size", 1026}}));
  EXPECT_EQ(Json::parse(files.at("generation_config.json")), Json({{"eos_token_id", {1025, 0, 7}}, {"top_p", 0.9}}));
  EXPECT_EQ(Json::parse(files.at("tokenizer_config.json")),
            Json({{"eos_token", "<|im_end|>"}, {"pad_token", "<|endoftext|>"}}));
  EXPECT_EQ(Json::parse(files.at("special_tokens_map.json")), Json({{"eos_token", "<|im_end|>"}}));
  const Files after = files;
  add_answer_end(files, 1025);
  EXPECT_EQ(files, after);
  // A model whose only end token it is has a number, as transformers writes it.
  files["generation_config.json"] = R"({"eos_token_id": null})";
  files.erase("config.json");
  add_answer_end(files, 1025);
  EXPECT_EQ(Json::parse(files.at("generation_config.json")), Json({{"eos_token_id", 1025}}));
  EXPECT_FALSE(files.contains("config.json"));
  // A template that writes eos_token would change with it.
  files = before;
  files["chat_template.jinja"] = "{{ messages[0].content }}<|im_end|>{{ eos_token }}";
  add_answer_end(files, 1025);
  EXPECT_EQ(files.at("tokenizer_config.json"), before.at("tokenizer_config.json"));
  EXPECT_EQ(Json::parse(files.at("config.json"))["eos_token_id"], Json({1025, 0}));
}

TEST(PublishedModel, ReadsTheTokenThatEndsAnswersFromAState) {
  EXPECT_EQ(answer_end_of(Json::parse(R"({"inference": {"answer_end_token": 5}})")), 5);
  for (const char* state :
       {"{}", R"({"inference": {}})", R"({"inference": 3})", R"({"inference": {"answer_end_token": "<|im_end|>"}})"})
    EXPECT_EQ(answer_end_of(Json::parse(state)), -1) << state;
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
}  // namespace lockstep::run
