// Damaged tokenizer files, and files that need unsupported features: each error says what is wrong and where.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "lockstep/error.h"
#include "test/text/golden.h"

namespace lockstep::text {
namespace {

using golden::Json;

struct Refusal {
  ErrorCode code;
  std::string message;
};

Refusal refusal_of(const std::string& content) {
  try {
    Tokenizer::parse("t.json", content);
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ErrorCode::internal, "was accepted"};
}

/// A tokenizer file that is accepted.
Json small() {
  return Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 0, "content": "<s>", "special": true}, {"id": 5, "content": "</s>", "normalized": false}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
      {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3, "c": 4}, "merges": ["#version: 0.2", "a b"]}})");
}

struct Case {
  std::function<void(Json&)> change;
  ErrorCode code;
  std::string message;  // a part of it
};

Json nested(int depth) {
  Json part = {{"type", "NFC"}};
  for (int i = 0; i < depth; ++i) part = {{"type", "Sequence"}, {"normalizers", Json::array({part})}};
  return part;
}

TEST(TokenizerFile, AcceptsTheSmallOne) {
  const Tokenizer tokenizer = Tokenizer::parse("t.json", small().dump());
  EXPECT_EQ(golden::encode(tokenizer, "abcab</s>"), (golden::Ids{0, 3, 4, 3, 5}));
  EXPECT_EQ(tokenizer.end_token(), 5);
  Json json = small();
  json["normalizer"] = nested(8);
  EXPECT_NO_THROW(Tokenizer::parse("t.json", json.dump()));
}

TEST(TokenizerFile, NamesWhatIsNotSupported) {
  const ErrorCode code = ErrorCode::model_feature;
  const auto split = [](const char* pattern) {
    return [pattern](Json& j) {
      j["pre_tokenizer"] = {
          {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
    };
  };
  const std::vector<Case> cases = {
      {[](Json& j) { j["version"] = "2.0"; }, code, "t.json: the version 2.0 is not supported"},
      {[](Json& j) {
         j["truncation"] = {{"max_length", 5}};
       },
       code, "t.json: truncation (set it to null in the file)"},
      {[](Json& j) {
         j["padding"] = {{"length", 5}};
       },
       code, "t.json: padding (set it to null in the file)"},
      {[](Json& j) { j["model"]["type"] = "Unigram"; }, code, "t.json.model: the model Unigram is not supported"},
      {[](Json& j) { j["model"]["dropout"] = 0.1; }, code, "dropout is not supported"},
      {[](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; }, code, "continuing_subword_prefix"},
      {[](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, code, "end_of_word_suffix"},
      {[](Json& j) { j["model"]["byte_fallback"] = true; }, code, "byte_fallback with the pre-tokenizer ByteLevel"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "NFKC"}};
       },
       code, "t.json.normalizer: the normalizer NFKC"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", ""}};
       },
       code, "t.json.normalizer.pattern: a pattern other than {\"String\": ...} in Replace"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", ""}};
       },
       code, "an empty pattern"},
      {[](Json& j) {
         Json deep;
         for (int i = 0; i < 1000; ++i) deep = Json::array({std::move(deep)});
         j["normalizer"] = {{"type", "NFC"}, {"comment", std::move(deep)}};
       },
       ErrorCode::model_file_damaged, "t.json: values are nested more than 256 levels deep"},
      {[](Json& j) { j["normalizer"] = nested(9); }, code, "a Sequence in 8 others"},
      {[](Json& j) {
         j["pre_tokenizer"] = {{"type", "Metaspace"}};
       },
       code, "the pre-tokenizer Metaspace"},
      {[](Json& j) {
         j["pre_tokenizer"] = {
             {"type", "Sequence"},
             {"pretokenizers", {j["pre_tokenizer"], {{"type", "Digits"}, {"individual_digits", true}}}}};
       },
       code, "t.json.pre_tokenizer.pretokenizers[1]: a pre-tokenizer after ByteLevel"},
      {[&](Json& j) {
         split("a")(j);
         j["pre_tokenizer"]["behavior"] = "MergedWithNext";
       },
       code, "the behavior MergedWithNext of a Split"},
      {split("\\bx"), code, "t.json.pre_tokenizer has the pattern \\bx; `\\b` in it is not supported"},
      {split("^x"), code, "`^` in it"},
      {split("(?<name>x)"), code, "`(?<n` in it"},
      {split("x*"), code, "matches the empty string"},
      {split("(x"), code, "which PCRE2 refuses"},
      {[](Json& j) {
         j["decoder"] = {{"type", "WordPiece"}};
       },
       code, "t.json.decoder: the decoder WordPiece"},
      {[](Json& j) {
         j["post_processor"] = {{"type", "BertProcessing"}};
       },
       code, "the post-processor BertProcessing"},
      {[](Json& j) {
         j["post_processor"] = {{"type", "Sequence"}, {"processors", {j["post_processor"], j["post_processor"]}}};
       },
       code, "a second TemplateProcessing"},
      {[](Json& j) { j["post_processor"]["single"][1]["Sequence"]["id"] = "B"; }, code,
       "a template other than with one A"},
      {[](Json& j) { j["post_processor"]["single"].push_back(j["post_processor"]["single"][1]); }, code,
       "other than with one A"},
      {[](Json& j) { j["post_processor"]["single"].erase(1); }, code, "a template without A"},
      {[](Json& j) { j["added_tokens"][1]["content"] = ""; }, ErrorCode::model_file_damaged,
       "t.json.added_tokens[1].content: expected a token of at least one byte"},
      {[](Json& j) { j["added_tokens"][1]["content"] = std::string((1 << 20) + 1, 'x'); }, code,
       "t.json.added_tokens: more than 1048576 bytes in added tokens"},
      {[](Json& j) { j["added_tokens"][1]["id"] = 9; }, code, "the id 9 of the token </s>, which must be 5,"},
      {[](Json& j) { j["added_tokens"][0]["id"] = 1; }, code, "the id 1 of the token <s>, which must be 0,"},
      {[](Json& j) { j["model"]["vocab"]["d"] = 6, j["model"]["vocab"].erase("c"), j["added_tokens"][1]["id"] = 6; },
       code, "the id 6 of the token </s>, which must be 5,"},
      {[](Json& j) { j["model"]["vocab"]["c"] = 5; }, code, "the id 5, which the token c has already,"},
  };
  for (const Case& bad : cases) {
    Json json = small();
    bad.change(json);
    const Refusal refusal = refusal_of(json.dump());
    EXPECT_EQ(refusal.code, bad.code) << refusal.message;
    EXPECT_NE(refusal.message.find(bad.message), std::string::npos)
        << refusal.message << "\n  instead of " << bad.message;
  }
}

TEST(TokenizerFile, NamesWhatIsDamaged) {
  const ErrorCode code = ErrorCode::model_file_damaged;
  const std::vector<Case> cases = {
      {[](Json& j) { j = Json::array(); }, code, "t.json: expected an object"},
      {[](Json& j) { j.erase("model"); }, code, "t.json has no `model`"},
      {[](Json& j) { j["model"].erase("vocab"); }, code, "t.json.model has no `vocab`"},
      {[](Json& j) { j["model"].erase("merges"); }, code, "t.json.model has no `merges`"},
      {[](Json& j) { j["model"]["vocab"] = Json::object(); }, code, "expected an object with tokens"},
      {[](Json& j) {
         j["model"]["vocab"] = {"a", "b"};
       },
       code, "expected an object with tokens"},
      {[](Json& j) { j["model"]["vocab"]["a"] = -1; }, code,
       "t.json.model.vocab.a: expected an integer up to 1033, found -1"},
      {[](Json& j) { j["model"]["vocab"]["a"] = 1.5; }, code, "found 1.5"},
      {[](Json& j) { j["model"]["vocab"]["a"] = 2000; }, code, "an integer up to 1033, found 2000"},
      {[](Json& j) { j["model"]["vocab"]["a"] = 4000000000u; }, code, "found 4000000000"},
      {[](Json& j) { j["model"]["vocab"]["b"] = 1; }, code, "the tokens a and b have the same id 1"},
      {[](Json& j) { j["model"]["merges"][1] = "a z"; }, code,
       "t.json.model.merges[1]: the token z is not in the vocabulary"},
      {[](Json& j) { j["model"]["merges"][1] = "b a"; }, code, "the token ba is not in the vocabulary"},
      {[](Json& j) { j["model"]["merges"][1] = "a b c"; }, code, "expected two tokens"},
      {[](Json& j) { j["model"]["merges"][1] = "ab"; }, code, "expected two tokens"},
      {[](Json& j) { j["model"]["merges"][1] = {"a"}; }, code, "expected two tokens"},
      {[](Json& j) {
         j["model"]["merges"][1] = {"a", 1};
       },
       code, "expected two tokens"},
      {[](Json& j) { j["model"]["merges"][1] = 5; }, code, "expected two tokens"},
      {[](Json& j) { j["model"]["unk_token"] = "<unk>"; }, code,
       "t.json.model.unk_token: expected a token of the vocabulary"},
      {[](Json& j) { j["model"]["fuse_unk"] = "yes"; }, code, "expected true or false, found \"yes\""},
      {[](Json& j) { j["added_tokens"] = 7; }, code, "t.json.added_tokens: expected an array, found 7"},
      {[](Json& j) { j["added_tokens"][0].erase("content"); }, code, "t.json.added_tokens[0] has no `content`"},
      {[](Json& j) { j["added_tokens"][0]["id"] = "0"; }, code, "expected an integer"},
      {[](Json& j) { j["added_tokens"].push_back(j["added_tokens"][1]); }, code,
       "t.json.added_tokens[2]: the token </s> occurs twice"},
      {[](Json& j) {
         j["pre_tokenizer"] = {{"types", "ByteLevel"}};
       },
       code, "t.json.pre_tokenizer has no `type`"},
      {[](Json& j) { j["pre_tokenizer"].erase("add_prefix_space"); }, code, "has no `add_prefix_space`"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "Sequence"}, {"normalizers", 3}};
       },
       code, "expected an array"},
      {[](Json& j) {
         j["decoder"] = {{"type", "Strip"}, {"content", ""}, {"start", 1}, {"stop", 0}};
       },
       code, "one character"},
      {[](Json& j) { j["post_processor"]["special_tokens"] = Json::object(); }, code, "has no `<s>`"},
      {[](Json& j) { j["post_processor"]["special_tokens"]["<s>"]["ids"][0] = 77; }, code,
       "expected the id of a token, found 77"},
  };
  for (const Case& bad : cases) {
    Json json = small();
    bad.change(json);
    const Refusal refusal = refusal_of(json.dump());
    EXPECT_EQ(refusal.code, bad.code) << refusal.message;
    EXPECT_NE(refusal.message.find(bad.message), std::string::npos)
        << refusal.message << "\n  instead of " << bad.message;
  }
  for (const std::string& content : {std::string(), std::string("{"), std::string("{\"model\": \xff\xff}"),
                                     small().dump() + "x", small().dump() + std::string("\0", 1)}) {
    const Refusal refusal = refusal_of(content);
    EXPECT_EQ(refusal.code, code) << refusal.message;
    EXPECT_NE(refusal.message.find("t.json is not valid JSON"), std::string::npos) << refusal.message;
  }
  const Refusal twice = refusal_of(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "a": 2}, "merges": []}})");
  EXPECT_EQ(twice.message, "t.json: an object has the key \"a\" twice; remove one of them");
}

TEST(TokenizerFile, ReportsThatThereIsNone) {
  for (const std::string path : {"/nowhere/tokenizer.json", "test/text"}) {
    try {
      Tokenizer::open(path);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::cannot_open) << error.what();
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
}

// ---- tokenizer.bin --------------------------------------------------------------------------------------------------

template <typename T>
std::string with_number(std::string content, std::size_t offset, T value) {
  std::memcpy(content.data() + offset, &value, sizeof value);
  return content;
}

TEST(Llama2cFile, NamesWhatIsDamaged) {
  const std::string good = read_file(golden::kFolder + "tok512.bin");
  EXPECT_NO_THROW(Tokenizer::parse("t.bin", good));
  const auto expect = [&](const std::string& content, const std::string& part) {
    const Refusal refusal = refusal_of(content);
    EXPECT_EQ(refusal.code, ErrorCode::model_file_damaged) << refusal.message;
    EXPECT_NE(refusal.message.find(part), std::string::npos) << refusal.message << "\n  instead of " << part;
  };
  // The first token begins after the number that gives the length of the longest token: score, length 5, "<unk>".
  expect(good.substr(0, good.size() - 1), "ends in the middle of a token");
  expect(good.substr(0, 7), "ends in the middle of a token");
  expect(good.substr(0, 3), "ends in the middle of a token");
  expect(good.substr(0, 4 + 13), "token 3 is not <0x00>, so this is not a tokenizer.bin of llama2.c");
  expect(with_number(good, 0, std::int32_t{0}), "the longest token is said to have 0 bytes; at most 1024 are possible");
  expect(with_number(good, 0, std::int32_t{1025}), "the longest token is said to have 1025 bytes");
  expect(with_number(good, 8, std::int32_t{-1}), "token 0 has -1 bytes");
  expect(with_number(good, 8, std::int32_t{0}), "token 0 has 0 bytes");
  expect(with_number(good, 8, std::int32_t{0x7fffffff}), "token 0 has 2147483647 bytes");
  expect(with_number(good, 4, std::numeric_limits<float>::quiet_NaN()), "the score of token 0 is not a number");
  std::string twice = good;
  const std::size_t byte = twice.find("<0x00>");
  std::string entry = good.substr(byte - 8, 14);
  expect(good + entry, "token 512 occurs twice");
  twice[byte + 3] = '1';
  expect(twice, "token 3 is not <0x00>");
}

}  // namespace
}  // namespace lockstep::text
