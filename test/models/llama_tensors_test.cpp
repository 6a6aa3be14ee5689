// The names and shapes of a decoder's tensors, and the messages for a file that has others.
#include "models/llama_tensors.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep::models {
namespace {

using Architecture = LlamaConfig::Architecture;

LlamaConfig small(Architecture architecture) {
  LlamaConfig c{.architecture = architecture,
                .vocabulary = 100,
                .width = 56,
                .ffn_width = 48,
                .layers = 11,
                .heads = 7,
                .key_value_heads = 1,
                .head_size = 8,
                .positions = 64,
                .rope_scaling = {},
                .end_tokens = {}};
  c.query_key_value_bias = architecture == Architecture::qwen2;
  c.query_key_norm = architecture == Architecture::qwen3 || architecture == Architecture::gemma3;
  c.norms_of_outputs = architecture == Architecture::gemma3;
  return c;
}

std::int64_t n_elements(const TensorShapes& tensors) {
  std::int64_t n = 0;
  for (const auto& [name, shape] : tensors) n += shape.n_elements();
  return n;
}

std::string error_of(const LlamaConfig& config, const TensorShapes& tensors) {
  try {
    check_llama_tensors(config, tensors, "DIR");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::checkpoint_mismatch);
    return error.what();
  }
  return "";
}

TEST(LlamaTensors, AreAllParameters) {
  for (const Architecture architecture :
       {Architecture::llama, Architecture::qwen2, Architecture::qwen3, Architecture::gemma3})
    for (const bool all : {false, true}) {
      LlamaConfig c = small(architecture);
      c.tied_embeddings = all;
      c.output_bias = c.ffn_bias = all;
      EXPECT_EQ(n_elements(llama_tensors(c)), c.n_parameters());
      EXPECT_EQ(error_of(c, llama_tensors(c)), "");
    }
}

TEST(LlamaTensors, HaveTheNamesOfTransformers) {
  const TensorShapes llama = llama_tensors(small(Architecture::llama));
  EXPECT_EQ(llama.size(), 3u + 11u * 9u);
  EXPECT_EQ(llama.at("lm_head.weight"), (Shape{100, 56}));
  EXPECT_EQ(llama.at("model.layers.10.self_attn.k_proj.weight"), (Shape{8, 56}));
  EXPECT_EQ(llama.at("model.layers.10.mlp.down_proj.weight"), (Shape{56, 48}));
  const TensorShapes qwen2 = llama_tensors(small(Architecture::qwen2));
  EXPECT_EQ(qwen2.at("model.layers.0.self_attn.q_proj.bias"), (Shape{56}));
  EXPECT_FALSE(qwen2.contains("model.layers.0.self_attn.o_proj.bias"));
  LlamaConfig wide = small(Architecture::qwen3);  // the heads together are wider than the model
  wide.head_size = 12;
  const TensorShapes qwen3 = llama_tensors(wide);
  EXPECT_EQ(qwen3.at("model.layers.0.self_attn.q_norm.weight"), (Shape{12}));
  EXPECT_EQ(qwen3.at("model.layers.0.self_attn.q_proj.weight"), (Shape{84, 56}));
  EXPECT_EQ(qwen3.at("model.layers.0.self_attn.o_proj.weight"), (Shape{56, 84}));
}

TEST(LlamaTensors, WhatDoesNotBelongIsNamed) {
  const LlamaConfig config = small(Architecture::llama);
  TensorShapes tensors = llama_tensors(config);
  tensors["model.norm.weight"] = {57};
  EXPECT_EQ(error_of(config, tensors),
            "model.norm.weight of DIR has the shape (57), but (56) according to the configuration: use the config.json "
            "that belongs to these weights");
  tensors.erase("model.norm.weight");
  EXPECT_NE(error_of(config, tensors).find("DIR has no tensor model.norm.weight, which has the shape (56)"),
            std::string::npos);
  // Without the check, the biases of such a file would be ignored.
  EXPECT_NE(error_of(config, llama_tensors(small(Architecture::qwen2)))
                .find("DIR has a tensor model.layers.0.self_attn.k_proj.bias of shape (8), which a model of this "
                      "configuration does not have"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::models
