#include "models/llama.h"

#include <cmath>

#include "layers/layers.h"
#include "lockstep/bf16.h"
#include "lockstep/fp16.h"
#include "models/lora.h"

namespace lockstep::models {

namespace {

using graph::ActivationId;
using graph::Graph;

constexpr const char* kEmbedding = "model.embed_tokens";

/// transformers multiplies embeddings by this number in the type of the model.
float embedding_scale(const LlamaConfig& config, DType dtype) {
  if (!config.scaled_embeddings) return 1;
  const auto scale = static_cast<float>(std::sqrt(static_cast<double>(config.width)));
  return dtype == DType::bf16 ? to_float(to_bf16(scale)) : dtype == DType::fp16 ? to_float(to_fp16(scale)) : scale;
}

/// What is passed from layer to layer. The residual stream is the sum of the two members, either of which may be
/// kNoActivation.
struct ResidualStream {
  ActivationId residual = graph::kNoActivation;
  ActivationId addend = graph::kNoActivation;
};

class Decoder {
 public:
  Decoder(Graph& graph, const LlamaConfig& config, const LlamaInputs& inputs, const LlamaOptions& options)
      : graph_(graph),
        config_(config),
        inputs_(inputs),
        options_(options),
        positions_(rotary_positions(false)),
        local_positions_(config.local_rope_theta > 0 ? rotary_positions(true) : positions_) {
    graph.parameters().begin_unit();
    stream_.residual = layers::embedding(graph, inputs.tokens, kEmbedding,
                                         {.sequence = inputs.sequence_length,
                                          .vocabulary = config.vocabulary,
                                          .width = config.width,
                                          .scale = embedding_scale(config, graph.options().dtype),
                                          .initial = llama_initializer(config)});
    if (options.lora.is_on())
      adapter_ = {.rank = options.lora.rank,
                  .scale = static_cast<float>(lora_scale(options.lora)),
                  .dropout = options.lora.dropout,
                  .seed = options.seed,
                  .sample_ids = inputs.sample_ids};
  }

  void layer(std::int64_t number) {
    const std::string name = "model.layers." + std::to_string(number);
    graph_.parameters().begin_unit();
    if (options_.recompute == Recompute::block) add_up();  // so that one tensor is kept instead of two
    const int first = graph_.n_nodes();
    adapter_.targets = lora_layers(options_.lora, name);
    // With norms of outputs, the norm called post_attention_layernorm is indeed the one after attention.
    const bool has_two = config_.norms_of_outputs;
    const auto end_block = [&](ActivationId x, const char* norm) {
      stream_.addend = has_two ? layers::rms_norm(graph_, x, name + norm, norm_options()) : x;
    };
    end_block(attention(normalized(name + ".input_layernorm"), name + ".self_attn", number),
              ".post_attention_layernorm");
    end_block(feed_forward(normalized(name + (has_two ? ".pre_feedforward_layernorm" : ".post_attention_layernorm")),
                           name + ".mlp"),
              ".post_feedforward_layernorm");
    if (options_.recompute == Recompute::block) graph_.recompute(first, graph_.n_nodes() - 1);
  }
  ActivationId end() {
    const ActivationId out = normalized("model.norm");
    graph_.parameters().begin_unit();  // the head
    return out;
  }

 private:
  void add_up() {
    if (stream_.addend == graph::kNoActivation) return;
    stream_.residual = layers::add(graph_, stream_.addend, stream_.residual);
    stream_.addend = graph::kNoActivation;
  }

  layers::RmsNormOptions norm_options() const {
    return {.epsilon = static_cast<float>(config_.norm_epsilon), .is_around_one = config_.norms_around_one};
  }

  graph::ConstantId rotary_positions(bool is_local) {
    return layers::rotary_positions(graph_, is_local ? "local rotary positions" : "rotary positions",
                                    config_.rope_frequencies(is_local), 1,
                                    inputs_.n_positions > 0 ? inputs_.n_positions : inputs_.sequence_length);
  }

  /// The normalised residual stream. A norm that is recomputed is not fused with the sum, so that it needs only the
  /// sum, and not both addends.
  ActivationId normalized(const std::string& name) {
    const layers::RmsNormOptions options = norm_options();
    if (options_.recompute == Recompute::selective) add_up();
    if (stream_.addend == graph::kNoActivation) return layers::rms_norm(graph_, stream_.residual, name, options);
    const auto [sum, y] = layers::add_rms_norm(graph_, stream_.addend, stream_.residual, name, options);
    stream_ = {.residual = sum};
    return y;
  }

  ActivationId linear(ActivationId x, const std::string& name, std::int64_t out_features, bool bias,
                      std::vector<graph::NamedRows> parts = {}) {
    return layers::linear(graph_, x, name,
                          {.out_features = out_features,
                           .bias = bias,
                           .parts = std::move(parts),
                           .initial = llama_initializer(config_),
                           .initial_bias = graph::Initializer{},
                           .allows_fp8 = true,
                           .is_in_nf4 = options_.base_in_nf4,
                           .adapter = adapter_});
  }

  /// One matrix product for q, k and v, which are three tensors in files.
  ActivationId attention(ActivationId x, const std::string& name, std::int64_t layer) {
    const int norm = graph_.n_nodes() - 1;
    const std::int64_t q = config_.heads * config_.head_size, kv = config_.key_value_heads * config_.head_size;
    const ActivationId packed = linear(x, name + ".qkv_proj", q + 2 * kv, config_.query_key_value_bias,
                                       {{name + ".q_proj", q}, {name + ".k_proj", kv}, {name + ".v_proj", kv}});
    recompute_cheap(norm);
    const ActivationId mixed =
        mix(config_.has_rope(layer) ? rotated(packed, name, layer) : packed, name + ".attention", layer);
    return linear(mixed, name + ".o_proj", config_.width, config_.output_bias);
  }

  ActivationId rotated(ActivationId packed, const std::string& name, std::int64_t layer) {
    const auto norm_of = [&](const char* part) { return config_.query_key_norm ? name + part : std::string(); };
    return layers::rotary(graph_, packed, inputs_.positions, name + ".rotary",
                          {.heads = config_.heads,
                           .kv_heads = config_.key_value_heads,
                           .head_dim = config_.head_size,
                           .table = config_.is_local(layer) ? local_positions_ : positions_,
                           .q_norm = norm_of(".q_norm"),
                           .k_norm = norm_of(".k_norm"),
                           .norms = norm_options()});
  }

  /// 0: that of the op.
  float score_scale() const {
    return config_.query_scalar > 0 ? static_cast<float>(1 / std::sqrt(config_.query_scalar)) : 0;
  }

  ActivationId mix(ActivationId qkv, const std::string& name, std::int64_t layer) {
    const layers::AttentionOptions options{.heads = config_.heads,
                                           .kv_heads = config_.key_value_heads,
                                           .head_dim = config_.head_size,
                                           .scale = score_scale(),
                                           .window = config_.window_of(layer)};
    const LlamaCache& cache = inputs_.cache;
    if (cache.slots == 0) return layers::attention(graph_, qkv, inputs_.document_start, name, options);
    return layers::cached_attention(graph_, qkv, name,
                                    {.attention = options,
                                     .slots = cache.slots,
                                     .capacity = cache.capacity,
                                     .slot = cache.slot,
                                     .positions = inputs_.positions,
                                     .cache_indirection = cache.cache_indirection});
  }

  /// One matrix product for gate and up.
  ActivationId feed_forward(ActivationId x, const std::string& name) {
    const int norm = graph_.n_nodes() - 1;
    const ActivationId packed =
        linear(x, name + ".gate_up_proj", 2 * config_.ffn_width, config_.ffn_bias,
               {{name + ".gate_proj", config_.ffn_width}, {name + ".up_proj", config_.ffn_width}});
    recompute_cheap(norm);
    const int product = graph_.n_nodes();
    const ActivationId gated = layers::glu(graph_, packed, config_.ffn_activation);
    const ActivationId out = linear(gated, name + ".down_proj", config_.width, config_.ffn_bias);
    recompute_cheap(product);
    return out;
  }

  /// selective: `node` runs once more before the backward pass of the newest node, the matrix product that reads its
  /// output. The product itself is not recomputed, since nothing would read its result.
  void recompute_cheap(int node) {
    if (options_.recompute == Recompute::selective) graph_.recompute(node, graph_.n_nodes() - 1);
  }

  Graph& graph_;
  const LlamaConfig& config_;
  LlamaInputs inputs_;
  LlamaOptions options_;
  graph::ConstantId positions_, local_positions_;  // the tables that layers share
  layers::AdapterOptions adapter_{};               // of the layer that is being added
  ResidualStream stream_;
};

}  // namespace

std::string llama_head(const LlamaConfig& config) { return config.tied_embeddings ? kEmbedding : "lm_head"; }

graph::Initializer llama_initializer(const LlamaConfig& config) {
  return {.kind = graph::Initializer::Kind::normal, .value = config.initializer_range};
}

ActivationId llama(Graph& graph, const LlamaConfig& config, const LlamaInputs& inputs, const LlamaOptions& options) {
  Decoder decoder(graph, config, inputs, options);
  for (std::int64_t number = 0; number < config.layers; ++number) decoder.layer(number);
  return decoder.end();
}

}  // namespace lockstep::models
