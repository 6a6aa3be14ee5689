// config.json of Llama, Mistral, Qwen2, Qwen3, SmolLM3 and Gemma 3 models: what is read, and what is refused by name.
#include "models/llama_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/error.h"

namespace lockstep::models {
namespace {

using Json = nlohmann::ordered_json;
using Architecture = LlamaConfig::Architecture;

Json small(const char* architecture) {
  return {{"architectures", {architecture}}, {"vocab_size", 100},        {"hidden_size", 56},
          {"intermediate_size", 48},         {"num_hidden_layers", 2},   {"num_attention_heads", 7},
          {"num_key_value_heads", 1},        {"rms_norm_eps", 1e-5},     {"rope_theta", 500000.0},
          {"tie_word_embeddings", true},     {"torch_dtype", "bfloat16"}};
}

LlamaConfig parse(const Json& json) { return parse_llama_config(json.dump(), "config.json"); }

/// The message of the error, or "" if there is none.
std::string error_of(const Json& json) {
  try {
    parse(json);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(LlamaConfig, ReadsALlama) {
  const LlamaConfig c = parse(small("LlamaForCausalLM"));
  EXPECT_EQ(c.architecture, Architecture::llama);
  EXPECT_EQ(c.vocabulary, 100);
  EXPECT_EQ(c.width, 56);
  EXPECT_EQ(c.ffn_width, 48);
  EXPECT_EQ(c.layers, 2);
  EXPECT_EQ(c.heads, 7);
  EXPECT_EQ(c.key_value_heads, 1);
  EXPECT_EQ(c.head_size, 8);
  EXPECT_EQ(c.norm_epsilon, 1e-5);
  EXPECT_EQ(c.rope_theta, 500000);
  EXPECT_EQ(c.positions, 2048);  // transformers' default
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_FALSE(c.query_key_value_bias || c.output_bias || c.ffn_bias || c.query_key_norm);
}

TEST(LlamaConfig, ArchitecturesDifferInBiasesAndNorms) {
  const LlamaConfig qwen2 = parse(small("Qwen2ForCausalLM"));
  EXPECT_TRUE(qwen2.query_key_value_bias);
  EXPECT_FALSE(qwen2.output_bias);
  const LlamaConfig qwen3 = parse(small("Qwen3ForCausalLM"));
  EXPECT_TRUE(qwen3.query_key_norm);
  EXPECT_FALSE(qwen3.query_key_value_bias);
  EXPECT_EQ(qwen3.head_size, 128);
  Json biased = small("LlamaForCausalLM");
  biased["attention_bias"] = biased["mlp_bias"] = true;
  const LlamaConfig llama = parse(biased);
  EXPECT_TRUE(llama.query_key_value_bias && llama.output_bias && llama.ffn_bias);
}

TEST(LlamaConfig, MistralHasAWindowInAllLayers) {
  Json json = small("MistralForCausalLM");
  LlamaConfig c = parse(json);
  EXPECT_EQ(c.positions, 131072);
  EXPECT_EQ(c.window, 4096);  // transformers' default
  EXPECT_FALSE(c.query_key_value_bias || c.output_bias || c.ffn_bias);
  json["sliding_window"] = nullptr;  // Mistral 7B v0.2 and later
  EXPECT_EQ(parse(json).window, 0);
  json["sliding_window"] = 16;
  json["max_position_embeddings"] = 32;
  EXPECT_EQ(parse(json).window, 16);
  json["sliding_window"] = 32;  // as long as the longest sequence: without effect
  EXPECT_EQ(parse(json).window, 0);
  json["sliding_window"] = 0;
  EXPECT_NE(error_of(json).find("sliding_window"), std::string::npos);
}

TEST(LlamaConfig, SmolLM3HasLayersWithoutRotaryEmbedding) {
  Json json = small("SmolLM3ForCausalLM");
  json["num_hidden_layers"] = 9;
  for (const char* key : {"rope_theta", "tie_word_embeddings"}) json.erase(key);
  const LlamaConfig c = parse(json);
  EXPECT_EQ(c.layers_without_rope, (std::vector<std::int64_t>{3, 7}));  // transformers' default interval of 4
  EXPECT_EQ(c.rope_theta, 2e6);
  EXPECT_TRUE(c.tied_embeddings);
  json["no_rope_layer_interval"] = 3;
  EXPECT_EQ(parse(json).layers_without_rope, (std::vector<std::int64_t>{2, 5, 8}));
  json["no_rope_layers"] = {1, 0, 1, 1, 0, 1, 1, 1, 1, 0};  // may be longer
  EXPECT_EQ(parse(json).layers_without_rope, (std::vector<std::int64_t>{1, 4}));
  for (const Json& wrong : {Json{1, 0}, Json{1, 0, 1, 1, 0, 1, 1, 1, 2}, Json("1")}) {
    json["no_rope_layers"] = wrong;
    EXPECT_NE(error_of(json).find("no_rope_layers"), std::string::npos) << wrong;
  }
}

TEST(LlamaConfig, Gemma3HasTwoTypesOfLayers) {
  Json json = small("Gemma3ForCausalLM");
  json["num_hidden_layers"] = 7;
  for (const char* key : {"rope_theta", "tie_word_embeddings"}) json.erase(key);
  LlamaConfig c = parse(json);
  EXPECT_TRUE(c.query_key_norm && c.norms_of_outputs && c.norms_around_one && c.scaled_embeddings && c.tied_embeddings);
  EXPECT_EQ(c.ffn_activation, ActivationFunction::gelu);
  EXPECT_EQ(c.head_size, 256);  // these are defaults in transformers
  EXPECT_EQ(c.query_scalar, 256);
  EXPECT_EQ(c.window, 4096);
  EXPECT_EQ(c.layers_without_window, (std::vector<std::int64_t>{5}));
  EXPECT_EQ(c.rope_theta, 1e6);
  EXPECT_EQ(c.local_rope_theta, 1e4);
  EXPECT_FALSE(c.is_local(5));
  EXPECT_TRUE(c.is_local(6));
  json["layer_types"] = {"sliding_attention", "full_attention",    "sliding_attention", "sliding_attention",
                         "full_attention",    "sliding_attention", "sliding_attention"};
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  c = parse(json);
  EXPECT_EQ(c.layers_without_window, (std::vector<std::int64_t>{1, 4}));
  EXPECT_EQ(parse(Json(to_json(c))), c);
  const std::vector<double> global = c.rope_frequencies(), local = c.rope_frequencies(/*is_local=*/true);
  EXPECT_EQ(global[0], 1.0 / 8);
  EXPECT_EQ(local[0], 1);  // is not scaled
  EXPECT_NEAR(local[64], std::pow(1e4, -0.5), 1e-12);
  // Since transformers 5
  json.erase("rope_scaling");
  json["rope_parameters"] = {{"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}},
                             {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}}};
  EXPECT_EQ(parse(json), c);
}

TEST(LlamaConfig, RefusesWhatGemma3DoesNotCompute) {
  const std::pair<const char*, Json> wrong[] = {{"sliding_window", 0},
                                                {"query_pre_attn_scalar", -256},
                                                {"layer_types", {"full_attention"}},
                                                {"layer_types", {"full_attention", "chunked_attention"}},
                                                {"num_hidden_layers", 1000000000},
                                                {"hidden_activation", "silu"},
                                                {"attn_logit_softcapping", 50.0},
                                                {"final_logit_softcapping", 30.0},
                                                {"use_bidirectional_attention", true},
                                                {"rope_parameters", {{"sliding_attention", {{"rope_type", "yarn"}}}}},
                                                {"rope_local_base_freq", 0}};
  for (const auto& [key, value] : wrong) {
    Json json = small("Gemma3ForCausalLM");
    EXPECT_EQ(error_of(json), "");
    json[key] = value;
    EXPECT_NE(error_of(json).find(key), std::string::npos) << key << ": " << error_of(json);
  }
}

/// The configuration of google/gemma-3-4b-it, which leaves out what are defaults in transformers.
TEST(LlamaConfig, ReadsTheDecoderInsideGemma3ForConditionalGeneration) {
  const Json json = Json::parse(R"({"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
    "eoi_token_index": 256000, "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02,
    "mm_tokens_per_image": 256, "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                    "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                    "sliding_window": 1024},
    "vision_config": {"hidden_size": 1152, "image_size": 896, "num_hidden_layers": 27}})");
  const LlamaConfig c = parse(json);
  EXPECT_EQ(c.architecture, Architecture::gemma3);
  EXPECT_EQ(c.vocabulary, 262208);
  EXPECT_EQ(c.heads, 8);
  EXPECT_EQ(c.key_value_heads, 4);
  EXPECT_EQ(c.window, 1024);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.rope_scaling.factor, 8);
  EXPECT_EQ(c.end_tokens, (std::vector<std::int64_t>{1, 106}));
  EXPECT_EQ(c.n_parameters(), 3880263168);  // without the vision tower and the projector
  const Json written = Json(to_json(c));
  EXPECT_EQ(parse(written), c);
  EXPECT_TRUE(written["text_config"]["query_pre_attn_scalar"].is_number_integer());  // transformers 5 refuses others
  EXPECT_EQ(written["vision_config"], json["vision_config"]);
  EXPECT_EQ(written["architectures"], json["architectures"]);
  EXPECT_FALSE(written.contains("torch_dtype"));
  Json wrong = json;
  wrong["text_config"]["sliding_window"] = 0;
  EXPECT_NE(error_of(wrong).find("text_config: sliding_window"), std::string::npos) << error_of(wrong);
  wrong["text_config"] = 1;
  EXPECT_NE(error_of(wrong).find("text_config"), std::string::npos) << error_of(wrong);
  wrong = json;
  wrong["architectures"] = {"Qwen2_5_VLForConditionalGeneration"};
  EXPECT_NE(error_of(wrong).find("architectures"), std::string::npos) << error_of(wrong);
}

TEST(LlamaConfig, TheArchitectureMayFollowFromTheModelType) {
  Json json = small("LlamaForCausalLM");
  json.erase("architectures");
  json["model_type"] = "qwen2";
  EXPECT_EQ(parse(json).architecture, Architecture::qwen2);
}

TEST(LlamaConfig, RefusesAModelTypeThatContradictsTheArchitecture) {
  Json json = small("LlamaForCausalLM");
  json["model_type"] = "llama";
  EXPECT_EQ(error_of(json), "");
  for (const char* type : {"qwen2", "mistral"}) {
    json["model_type"] = type;
    EXPECT_EQ(error_of(json),
              fmt::format("config.json: model_type is \"{}\", but the architecture LlamaForCausalLM has "
                          "the model_type llama: correct the one that is wrong",
                          type));
  }
}

TEST(LlamaConfig, TellsWhereItIsNotJson) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      parse_llama_config(text, "config.json");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::config_unreadable);
      return error.what();
    }
    return "";
  };
  EXPECT_TRUE(message("{\n  \"vocab_size\": 7,\n}").starts_with("config.json is not valid JSON: line 3, column 1: "));
  for (const auto& [begin, end] : {std::pair{"[", "]"}, std::pair{"{\"a\":", "}"}}) {
    std::string deep = "{\"_x\":", closed;
    for (int i = 0; i < 200000; ++i) {
      deep += begin;
      closed += end;
    }
    EXPECT_NE(message(deep + "1" + closed + "}").find("256 levels"), std::string::npos);
  }
  EXPECT_TRUE(message("{} {}").starts_with("config.json is not valid JSON: line 1, column 4: "));
  const std::string twice = message(R"({"rope_scaling": {"factor": 2, "factor": 3}})");
  EXPECT_EQ(twice, "config.json: an object has the key \"factor\" twice; remove one of them");
  const std::string text = small("LlamaForCausalLM").dump();
  EXPECT_EQ(message(text + std::string("\0 {", 3)),
            fmt::format("config.json is not valid JSON: byte {} is 0", text.size()));
}

TEST(LlamaConfig, RopeIsReadInBothForms) {
  Json json = small("LlamaForCausalLM");
  json.erase("rope_theta");
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_EQ(parse(json).rope_theta, 1e6);
  const Json llama3{{"rope_type", "llama3"},
                    {"factor", 32.0},
                    {"low_freq_factor", 1.0},
                    {"high_freq_factor", 4.0},
                    {"original_max_position_embeddings", 8192}};
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    Json scaled = small("LlamaForCausalLM");
    scaled[key] = llama3;
    const LlamaConfig c = parse(scaled);
    EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::llama3);
    EXPECT_EQ(c.rope_scaling.factor, 32);
    EXPECT_EQ(c.rope_theta, 500000);
  }
}

// Values of transformers.modeling_rope_utils (float64): Llama-3.2-1B has head_dim 64, rope_theta 500000 and this
// scaling.
TEST(LlamaConfig, FrequenciesAreThoseOfTransformers) {
  LlamaConfig c{.head_size = 64, .rope_theta = 500000, .rope_scaling = {}};
  const std::vector<double> plain = c.rope_frequencies();
  ASSERT_EQ(plain.size(), 32u);
  EXPECT_EQ(plain[0], 1);
  EXPECT_NEAR(plain[31], std::pow(500000.0, -62.0 / 64), 1e-20);
  c.rope_scaling = {.kind = RopeScaling::Kind::llama3, .factor = 32};
  const std::vector<double> scaled = c.rope_frequencies();
  EXPECT_EQ(scaled[0], plain[0]);                                 // a short wave is kept
  EXPECT_NEAR(scaled[31], plain[31] / 32, 1e-18);                 // a long wave is slowed down
  const double smooth = (8192 * plain[16] / (2 * M_PI) - 1) / 3;  // in between
  ASSERT_GT(smooth, 0);
  ASSERT_LT(smooth, 1);
  EXPECT_NEAR(scaled[16], (1 - smooth) * plain[16] / 32 + smooth * plain[16], 1e-18);
  c.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 4};
  EXPECT_EQ(c.rope_frequencies()[5], plain[5] / 4);
}

TEST(LlamaConfig, SurvivesARoundTrip) {
  for (const char* architecture :
       {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "SmolLM3ForCausalLM"}) {
    Json json = small(architecture);
    json["head_dim"] = 16;
    json["bos_token_id"] = 1;
    json["eos_token_id"] = {2, 3};
    json["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
    const LlamaConfig c = parse(json);
    EXPECT_EQ(c.end_tokens, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(parse(to_json(c)), c) << architecture;
  }
  for (const std::string& name : llama_presets()) EXPECT_EQ(parse(to_json(*llama_preset(name))), *llama_preset(name));
}

TEST(LlamaConfig, PresetsHaveTheirKnownSizes) {
  EXPECT_EQ(llama_preset("smollm-135m")->n_parameters(), 134'515'008);
  EXPECT_EQ(llama_preset("qwen2-0.5b")->n_parameters(), 494'032'768);
  EXPECT_FALSE(llama_preset("smollm"));
}

TEST(LlamaConfig, RefusesWhatItDoesNotSupportByName) {
  const auto refuses = [](const char* key, const Json& value, const char* word) {
    Json json = small("LlamaForCausalLM");
    json[key] = value;
    const std::string message = error_of(json);
    EXPECT_NE(message.find(word), std::string::npos) << key << ": " << message;
  };
  refuses("architectures", {"MixtralForCausalLM"}, "MixtralForCausalLM");
  refuses("hidden_act", "gelu", "hidden_act");
  refuses("attention_dropout", 0.1, "attention_dropout");
  refuses("some_new_feature", 3, "some_new_feature");
  refuses("quantization_config", {{"bits", 4}}, "quantization_config");
  refuses("rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}, "yarn");
  refuses("rope_scaling", {{"rope_type", "linear"}}, "factor");
  refuses("rope_scaling", {{"rope_type", "linear"}, {"factor", 2}, {"attention_factor", 1}}, "attention_factor");
  refuses("rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}, "partial_rotary_factor");
  refuses("layer_types", {"full_attention", "sliding_attention"}, "sliding_attention");
  Json window = small("Qwen2ForCausalLM");
  window["use_sliding_window"] = true;
  window["sliding_window"] = 512;
  EXPECT_NE(error_of(window).find("sliding_window"), std::string::npos);
  window["sliding_window"] = 32768;  // as long as the longest sequence: without effect
  EXPECT_EQ(error_of(window), "");
}

TEST(LlamaConfig, IgnoresWhatChangesNothing) {
  const LlamaConfig plain = parse(small("LlamaForCausalLM"));
  const auto ignores = [&](const char* key, const Json& value) {
    Json json = small("LlamaForCausalLM");
    json[key] = value;
    EXPECT_EQ(error_of(json), "") << key;
    EXPECT_EQ(parse(json), plain) << key;
  };
  // Keys of SmolLM2-135M-Instruct and other models of the Hub, and any that begin with an underscore or are null
  ignores("transformers.js_config", {{"kv_cache_dtype", {{"q4f16", "float16"}}}});
  ignores("_model_name_or_path", "team/model");
  ignores("_attn_implementation_autoset", true);
  ignores("_anything", {{"rope_type", "yarn"}});
  ignores("unk_token_id", 0);
  ignores("is_causal", nullptr);
  ignores("something_new", nullptr);
  ignores("id2label", {{"0", "LABEL_0"}});
  ignores("output_router_logits", true);
  ignores("suppress_tokens", {1, 2});
  ignores("use_mrope", false);
  ignores("pruned_heads", Json::object());
  ignores("mlp_only_layers", Json::array());
  ignores("add_cross_attention", false);
  Json rope = small("LlamaForCausalLM");
  rope["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}, {"_note", 1}, {"factor", nullptr}};
  EXPECT_EQ(parse(rope), plain);
}

TEST(LlamaConfig, RefusesOtherKeysUnlessTheyAreNamed) {
  for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{{"is_causal", false},
                                                                            {"is_causal", true},
                                                                            {"something_new", false},
                                                                            {"something_new", Json::object()},
                                                                            {"something_new", ""},
                                                                            {"use_mrope", true},
                                                                            {"mlp_only_layers", {3}},
                                                                            {"pruned_heads", {{"1", {0}}}},
                                                                            {"attention_dropout", 0.1},
                                                                            {"per_layer_config", Json::object()}}) {
    Json json = small("LlamaForCausalLM");
    json[key] = value;
    try {
      parse(json);
      ADD_FAILURE() << key << " " << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::model_feature) << error.what();
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
    EXPECT_THROW(parse_llama_config(json.dump(), "config.json", {"another_key"}), Error) << key;
    EXPECT_EQ(parse_llama_config(json.dump(), "config.json", {"another_key", key}), parse(small("LlamaForCausalLM")));
  }
}

TEST(LlamaConfig, RefusesImpossibleSizes) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"})
    for (const Json& value :
         {Json(0), Json(-1), Json(1e300), Json("7"), Json(1LL << 60), Json(nullptr), Json::array()}) {
      Json json = small("LlamaForCausalLM");
      json[key] = value;
      EXPECT_NE(error_of(json).find(key), std::string::npos) << key << " " << value;
    }
  Json json = small("LlamaForCausalLM");
  json["num_key_value_heads"] = 3;
  EXPECT_NE(error_of(json).find("multiple"), std::string::npos);
  json = small("LlamaForCausalLM");
  json["head_dim"] = 9;
  EXPECT_NE(error_of(json).find("even"), std::string::npos);
  json = small("LlamaForCausalLM");
  json["hidden_size"] = 57;
  EXPECT_NE(error_of(json).find("head_dim"), std::string::npos);
  json = small("LlamaForCausalLM");
  json["eos_token_id"] = 100;
  EXPECT_NE(error_of(json).find("eos_token_id"), std::string::npos);
  for (const char* text : {"", "[]", "3", "{", "null", "\xff"})
    EXPECT_THROW(parse_llama_config(text, "config.json"), Error) << text;
}

}  // namespace
}  // namespace lockstep::models
