#include "models/llama_tensors.h"

#include <fmt/format.h>

#include "lockstep/error.h"

namespace lockstep::models {
namespace {

constexpr const char* kRemedy = "use the config.json that belongs to these weights";

void add_linear(TensorShapes& tensors, const std::string& name, std::int64_t out, std::int64_t in, bool has_bias) {
  tensors[name + ".weight"] = {out, in};
  if (has_bias) tensors[name + ".bias"] = {out};
}

void add_layer(TensorShapes& tensors, const LlamaConfig& c, const std::string& layer) {
  const std::int64_t q = c.heads * c.head_size, kv = c.key_value_heads * c.head_size;
  tensors[layer + ".input_layernorm.weight"] = {c.width};
  add_linear(tensors, layer + ".self_attn.q_proj", q, c.width, c.query_key_value_bias);
  add_linear(tensors, layer + ".self_attn.k_proj", kv, c.width, c.query_key_value_bias);
  add_linear(tensors, layer + ".self_attn.v_proj", kv, c.width, c.query_key_value_bias);
  add_linear(tensors, layer + ".self_attn.o_proj", c.width, q, c.output_bias);
  if (c.query_key_norm)
    for (const char* norm : {".self_attn.q_norm.weight", ".self_attn.k_norm.weight"})
      tensors[layer + norm] = {c.head_size};
  tensors[layer + ".post_attention_layernorm.weight"] = {c.width};
  if (c.norms_of_outputs)
    for (const char* norm : {".pre_feedforward_layernorm.weight", ".post_feedforward_layernorm.weight"})
      tensors[layer + norm] = {c.width};
  add_linear(tensors, layer + ".mlp.gate_proj", c.ffn_width, c.width, c.ffn_bias);
  add_linear(tensors, layer + ".mlp.up_proj", c.ffn_width, c.width, c.ffn_bias);
  add_linear(tensors, layer + ".mlp.down_proj", c.width, c.ffn_width, c.ffn_bias);
}

}  // namespace

TensorShapes llama_tensors(const LlamaConfig& config) {
  TensorShapes tensors{{"model.embed_tokens.weight", {config.vocabulary, config.width}},
                       {"model.norm.weight", {config.width}}};
  for (std::int64_t i = 0; i < config.layers; ++i) add_layer(tensors, config, fmt::format("model.layers.{}", i));
  if (!config.tied_embeddings) tensors["lm_head.weight"] = {config.vocabulary, config.width};
  return tensors;
}

bool has_llama_names(const TensorShapes& tensors) {
  const auto first = tensors.lower_bound("model.");
  return first != tensors.end() && first->first.starts_with("model.");
}

void check_llama_tensors(const LlamaConfig& config, const TensorShapes& tensors, const std::string& source) {
  const TensorShapes expected = llama_tensors(config);
  for (const auto& [name, shape] : expected) {
    const auto found = tensors.find(name);
    require(found != tensors.end(), ErrorCode::checkpoint_mismatch,
            "{} has no tensor {}, which has the shape {} according to the configuration: {}", source, name,
            shape.text(), kRemedy);
    require(found->second == shape, ErrorCode::checkpoint_mismatch,
            "{} of {} has the shape {}, but {} according to the configuration: {}", name, source, found->second.text(),
            shape.text(), kRemedy);
  }
  for (const auto& [name, shape] : tensors)
    require(expected.contains(name), ErrorCode::checkpoint_mismatch,
            "{} has a tensor {} of shape {}, which a model of this configuration does not have: {}", source, name,
            shape.text(), kRemedy);
}

}  // namespace lockstep::models
