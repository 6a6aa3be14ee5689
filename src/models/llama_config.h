// The architecture of a decoder of the Llama family, as a config.json of Hugging Face's transformers describes it for
// LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, SmolLM3ForCausalLM and Gemma3ForCausalLM,
// or in its text_config for Gemma3ForConditionalGeneration.
//
// Everything that such a file specifies is honoured. An unknown key, or a value that asks for another computation
// (dropout, another activation), is rejected by name, except for keys that are null, that begin with
// an underscore, or that are known to change nothing. Missing keys have the defaults of transformers, but the sizes are
// required.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/ops/activation_function.h"

namespace lockstep::models {

/// How the frequencies of the rotary embedding are scaled for longer texts.
struct RopeScaling {
  enum class Kind : std::uint8_t { none, linear, llama3 };
  Kind kind = Kind::none;
  double factor = 1;
  // llama3
  double low_frequency_factor = 1, high_frequency_factor = 4;
  std::int64_t original_positions = 8192;

  bool operator==(const RopeScaling&) const = default;
};

struct LlamaConfig {
  enum class Architecture : std::uint8_t { llama, mistral, qwen2, qwen3, smollm3, gemma3 };
  Architecture architecture = Architecture::llama;
  std::int64_t vocabulary = 0, width = 0, ffn_width = 0, layers = 0;
  std::int64_t heads = 0, key_value_heads = 0, head_size = 0;
  std::int64_t positions = 0;                         // the longest sequence
  std::int64_t window = 0;                            // tokens that a token attends to, itself included; 0: all
  std::vector<std::int64_t> layers_without_window{};  // ascending: there, a token attends to all
  bool query_key_value_bias = false, output_bias = false, ffn_bias = false;
  bool query_key_norm = false;     // an RMS norm of each head of q and k
  bool norms_of_outputs = false;   // attention and the feed-forward layer are also followed by a norm
  bool norms_around_one = false;   // norms multiply by 1 + weight
  bool scaled_embeddings = false;  // embeddings are multiplied by sqrt(width)
  bool tied_embeddings = false;    // the embedding is also the last matrix
  double query_scalar = 0;         // attention's scores are divided by its square root; 0: head_size
  ActivationFunction ffn_activation = ActivationFunction::silu;
  double norm_epsilon = 1e-6;
  double initializer_range = 0.02;  // standard deviation of initial weights
  double rope_theta = 10000;
  double local_rope_theta = 0;  // of layers with a window, which are not scaled; 0: they are like the others
  RopeScaling rope_scaling{};
  std::vector<std::int64_t> layers_without_rope{};  // ascending: no positions are encoded there
  std::int64_t begin_token = -1;                    // -1: none
  std::vector<std::int64_t> end_tokens{};           // empty: none
  std::string composite{};  // the rest of the config.json of a model of which the decoder is a part; empty: of none

  bool operator==(const LlamaConfig&) const = default;
  /// The model_type of its config.json, such as qwen2.
  std::string_view type() const;
  std::int64_t n_parameters() const;
  bool has_rope(std::int64_t layer) const;
  std::int64_t window_of(std::int64_t layer) const;
  /// Whether the layer has the angles of local_rope_theta.
  bool is_local(std::int64_t layer) const { return local_rope_theta > 0 && window_of(layer) > 0; }
  /// The angle per position of each pair of elements of a head, in radians: (head_size / 2). The scaling is applied.
  /// Sources: Su et al., "RoFormer", 2021, section 3.2.2; for llama3, transformers' modeling_rope_utils.py.
  std::vector<double> rope_frequencies(bool is_local = false) const;
};

/// Parses the text of a config.json. `source` names it in errors. Keys in `ignore_keys` count as absent. Throws
/// config_invalid, config_conflict or model_feature.
LlamaConfig parse_llama_config(const std::string& text, const std::string& source,
                               const std::vector<std::string>& ignore_keys = {});
/// The content of a config.json that parse_llama_config() turns into the same values, and that transformers reads.
nlohmann::ordered_json to_json(const LlamaConfig& config);

/// The names that model.config accepts besides paths.
std::vector<std::string> llama_presets();
/// Empty if there is no preset of this name.
std::optional<LlamaConfig> llama_preset(const std::string& name);

}  // namespace lockstep::models
