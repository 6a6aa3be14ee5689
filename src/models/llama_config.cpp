#include "models/llama_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string_view>

#include "base/json.h"
#include "lockstep/error.h"

namespace lockstep::models {
namespace {

using Json = nlohmann::json;
using Architecture = LlamaConfig::Architecture;

constexpr std::int64_t kMaxSize = 1 << 24;  // the maximum vocabulary size, width and number of positions
constexpr std::int64_t kMaxLayers = 4096, kMaxHeads = 4096, kMaxHeadSize = 1024;

// Gemma 3
constexpr const char* kFullAttention = "full_attention";
constexpr const char* kWindowedAttention = "sliding_attention";
constexpr double kLocalRopeTheta = 10000;

/// What the architectures differ in. The numbers are defaults in transformers; 0: there is none.
struct ArchitectureRow {
  Architecture architecture;
  const char* class_name;
  const char* model_type;
  std::int64_t positions;
  const char* composite = nullptr;  // the class of models of which it is a part
  std::int64_t vocabulary = 0, heads = 0, key_value_heads = 0, head_size = 0;
  double rope_theta = 10000;
  bool tied_embeddings = false;
  bool has_attention_bias_key = true;  // attention_bias: of q, k, v and the output
  bool has_ffn_bias_key = false;       // mlp_bias
  bool query_key_value_bias = false;   // whatever the keys say
  bool query_key_norm = false;
  std::int64_t window = 0;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
};
constexpr std::array kArchitectures{
    ArchitectureRow{.architecture = Architecture::llama,
                    .class_name = "LlamaForCausalLM",
                    .model_type = "llama",
                    .positions = 2048,
                    .has_ffn_bias_key = true},
    ArchitectureRow{.architecture = Architecture::mistral,
                    .class_name = "MistralForCausalLM",
                    .model_type = "mistral",
                    .positions = 131072,
                    .has_attention_bias_key = false,
                    .window = 4096},
    ArchitectureRow{.architecture = Architecture::qwen2,
                    .class_name = "Qwen2ForCausalLM",
                    .model_type = "qwen2",
                    .positions = 32768,
                    .has_attention_bias_key = false,
                    .query_key_value_bias = true},
    ArchitectureRow{.architecture = Architecture::qwen3,
                    .class_name = "Qwen3ForCausalLM",
                    .model_type = "qwen3",
                    .positions = 32768,
                    .head_size = 128,
                    .query_key_norm = true},
    ArchitectureRow{.architecture = Architecture::smollm3,
                    .class_name = "SmolLM3ForCausalLM",
                    .model_type = "smollm3",
                    .positions = 32768,
                    .rope_theta = 2e6,
                    .tied_embeddings = true,
                    .has_ffn_bias_key = true},
    ArchitectureRow{.architecture = Architecture::gemma3,
                    .class_name = "Gemma3ForCausalLM",
                    .model_type = "gemma3_text",
                    .positions = 131072,
                    .composite = "Gemma3ForConditionalGeneration",
                    .vocabulary = 262208,
                    .heads = 8,
                    .key_value_heads = 4,
                    .head_size = 256,
                    .rope_theta = 1e6,
                    .tied_embeddings = true,
                    .query_key_norm = true,
                    .window = 4096,
                    .activation_key = "hidden_activation",
                    .activation = "gelu_pytorch_tanh"},
};

const ArchitectureRow& row_of(Architecture architecture) {
  return kArchitectures[static_cast<std::size_t>(architecture)];
}

/// Keys that do not change what training computes, whatever their values are: those that every configuration of
/// transformers may have (PreTrainedConfig, v4 and v5), and those of other programs.
constexpr std::string_view kIrrelevant[] = {
    "name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures", "model_type", "auto_map",
    // special tokens, and the tokenizer
    "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id", "decoder_start_token_id",
    "forced_bos_token_id", "forced_eos_token_id", "tokenizer_class", "prefix",
    // labels and tasks
    "id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params",
    // outputs and memory
    "output_attentions", "output_hidden_states", "output_scores", "output_router_logits", "return_dict",
    "return_dict_in_generate", "use_cache", "chunk_size_feed_forward", "gradient_checkpointing",
    "remove_invalid_values", "torchscript", "tf_legacy_loss", "is_decoder", "is_encoder_decoder", "is_llama_config",
    "max_window_layers",
    // serving and training elsewhere
    "attn_implementation", "pretraining_tp", "transformers.js_config", "unsloth_fixed", "unsloth_version",
    // generation
    "do_sample", "temperature", "top_k", "top_p", "typical_p", "max_length", "min_length", "num_beams",
    "num_beam_groups", "num_return_sequences", "early_stopping", "repetition_penalty", "length_penalty",
    "diversity_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "suppress_tokens",
    "begin_suppress_tokens", "exponential_decay_length_penalty", "generation_config"};

/// Keys of features that a value of false, {}, [] or "" turns off. (Not every key is of this kind: `is_causal: false`
/// changes attention.)
constexpr std::string_view kOffIfEmpty[] = {
    // of encoders and of old versions
    "add_cross_attention", "cross_attention_hidden_size", "pruned_heads", "tie_encoder_decoder", "use_bfloat16",
    // of models with similar configurations
    "mlp_only_layers", "qk_layernorm", "use_mrope", "use_qk_norm"};

bool is_irrelevant(std::string_view key, const Json& value) {
  const bool is_empty = value == false || (value.is_structured() && value.empty()) || value == "";
  return value.is_null() || key.starts_with('_') || std::ranges::find(kIrrelevant, key) != std::end(kIrrelevant) ||
         (is_empty && std::ranges::find(kOffIfEmpty, key) != std::end(kOffIfEmpty));
}

/// Reads the keys of one object. Keys that were not read are rejected at the end.
class Reader {
 public:
  Reader(const Json& json, std::string source) : json_(json), source_(std::move(source)) {
    require(json.is_object(), ErrorCode::config_invalid, "{}: expected a JSON object", source_);
  }

  /// A key whose value is null counts as absent.
  const Json* find(const char* key) {
    used_.emplace_back(key);
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high, std::int64_t missing) {
    const Json* value = find(key);
    if (!value) {
      require(missing >= low, ErrorCode::config_invalid, "{}: {} is missing", source_, key);
      return missing;
    }
    const bool fits = value->is_number_integer() && *value >= low && *value <= high;
    require(fits, ErrorCode::config_invalid, "{}: {}: expected a whole number from {} to {}, found {}", source_, key,
            low, high, shown(*value));
    return value->get<std::int64_t>();
  }
  double real(const char* key, double low, double high, double missing) {
    const Json* value = find(key);
    if (!value) return missing;
    const bool fits = value->is_number() && value->get<double>() >= low && value->get<double>() <= high;
    require(fits, ErrorCode::config_invalid, "{}: {}: expected a number from {} to {}, found {}", source_, key, low,
            high, shown(*value));
    return value->get<double>();
  }
  bool boolean(const char* key, bool missing) {
    const Json* value = find(key);
    if (!value) return missing;
    require(value->is_boolean(), ErrorCode::config_invalid, "{}: {}: expected true or false, found {}", source_, key,
            shown(*value));
    return value->get<bool>();
  }
  std::string text(const char* key, const std::string& missing) {
    const Json* value = find(key);
    if (!value) return missing;
    require(value->is_string(), ErrorCode::config_invalid, "{}: {}: expected a text, found {}", source_, key,
            shown(*value));
    return value->get<std::string>();
  }
  /// Rejects a feature that is not supported: the key must be absent, or have the value that turns the feature off.
  void only(const char* key, const Json& off) {
    const Json* value = find(key);
    require(!value || *value == off, ErrorCode::model_feature, "{}: {}: {} is not supported; only {} is", source_, key,
            value ? shown(*value) : "", off.dump());
  }
  [[noreturn]] void unsupported(const char* key, const std::string& what) const {
    fail(ErrorCode::model_feature, "{}: {}: {} is not supported", source_, key, what);
  }
  void finish() const {
    for (const auto& [key, value] : json_.items()) {
      const bool is_known = std::ranges::find(used_, key) != used_.end() || is_irrelevant(key, value);
      require(is_known, ErrorCode::model_feature,
              "{}: the key {} ({}) is not known, and may change what the model computes", source_, shown(key),
              shown(value));
    }
  }
  const std::string& source() const { return source_; }
  static std::string shown(const Json& value) {
    constexpr std::size_t kMost = 60;
    const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
    return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
  }

 private:
  const Json& json_;
  std::string source_;
  std::vector<std::string> used_;
};

Architecture architecture_of(const Json& json, const std::string& source) {
  std::vector<std::string> known;
  for (const ArchitectureRow& row : kArchitectures) known.emplace_back(row.class_name);
  const bool has_type = json.contains("model_type") && json["model_type"].is_string();
  const std::string type = has_type ? json["model_type"].get<std::string>() : "";
  std::string name;
  if (json.contains("architectures") && json["architectures"].is_array() && json["architectures"].size() == 1 &&
      json["architectures"][0].is_string()) {
    name = json["architectures"][0].get<std::string>();
  } else if (has_type) {
    for (const ArchitectureRow& row : kArchitectures)
      if (type == row.model_type) name = row.class_name;
    if (name.empty()) name = type;
  }
  for (const ArchitectureRow& row : kArchitectures) {
    require(row.composite == nullptr || name != row.composite, ErrorCode::config_invalid,
            "{}: text_config is missing, which describes the decoder of a {}", source, name);
    if (name != row.class_name) continue;
    require(!has_type || type == row.model_type, ErrorCode::config_conflict,
            "{}: model_type is {}, but the architecture {} has the model_type {}: correct the one that is wrong",
            source, Reader::shown(Json(type)), name, row.model_type);
    return row.architecture;
  }
  fail(ErrorCode::model_feature, "{}: expected one of the architectures {}, found {}", source, fmt::join(known, ", "),
       name.empty() ? "none" : Reader::shown(Json(name)));
}

RopeScaling read_rope_scaling(const Json& json, const std::string& source, double& theta) {
  Reader reader(json, source);
  RopeScaling out;
  theta = reader.real("rope_theta", 1, 1e12, theta);
  reader.only("partial_rotary_factor", 1.0);
  const std::string type = reader.text("rope_type", reader.text("type", "default"));
  reader.find("type");
  if (type == "default") {
    reader.find("factor");
  } else if (type == "linear") {
    out.kind = RopeScaling::Kind::linear;
    out.factor = reader.real("factor", 1, 1e6, 0);
  } else if (type == "llama3") {
    out.kind = RopeScaling::Kind::llama3;
    out.factor = reader.real("factor", 1, 1e6, 0);
    out.low_frequency_factor = reader.real("low_freq_factor", 1e-6, 1e6, 0);
    out.high_frequency_factor = reader.real("high_freq_factor", 1e-6, 1e6, 0);
    out.original_positions = reader.integer("original_max_position_embeddings", 1, kMaxSize, 0);
    require(out.high_frequency_factor > out.low_frequency_factor, ErrorCode::config_conflict,
            "{}: high_freq_factor must be greater than low_freq_factor, found {} and {}", source,
            out.high_frequency_factor, out.low_frequency_factor);
  } else {
    reader.unsupported("rope_type", Reader::shown(Json(type)) + " (default, linear and llama3 are)");
  }
  require(out.kind == RopeScaling::Kind::none || out.factor >= 1, ErrorCode::config_invalid, "{}: factor is missing",
          source);
  reader.finish();
  return out;
}

void read_rope(Reader& reader, LlamaConfig& out) {
  out.rope_theta = reader.real("rope_theta", 1, 1e12, out.rope_theta);
  if (out.architecture == Architecture::gemma3)
    out.local_rope_theta = reader.real("rope_local_base_freq", 1, 1e12, kLocalRopeTheta);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = reader.find(key);
    if (!value) continue;
    const std::string source = reader.source() + ": " + key;
    if (!value->is_object() || !(value->contains(kFullAttention) || value->contains(kWindowedAttention))) {
      out.rope_scaling = read_rope_scaling(*value, source, out.rope_theta);
      continue;
    }
    // Since transformers 5, those of Gemma's two types of layers.
    Reader types(*value, source);
    if (const Json* global = types.find(kFullAttention))
      out.rope_scaling = read_rope_scaling(*global, source + "." + kFullAttention, out.rope_theta);
    const Json* local = types.find(kWindowedAttention);
    if (local && read_rope_scaling(*local, source + "." + kWindowedAttention, out.local_rope_theta) != RopeScaling())
      types.unsupported(kWindowedAttention, "scaling of layers with a window");
    types.finish();
  }
}

void read_tokens(Reader& reader, LlamaConfig& out) {
  out.begin_token = reader.integer("bos_token_id", -1, out.vocabulary - 1, -1);
  const Json* end = reader.find("eos_token_id");
  if (!end) return;
  const Json list = end->is_array() ? *end : Json::array({*end});
  for (const Json& id : list) {
    const bool fits = id.is_number_integer() && id >= 0 && id < out.vocabulary;
    require(fits, ErrorCode::config_invalid, "{}: eos_token_id: expected numbers from 0 to {}, found {}",
            reader.source(), out.vocabulary - 1, Reader::shown(*end));
    out.end_tokens.push_back(id.get<std::int64_t>());
  }
}

/// Gemma 3: the types of layers, or every layer of an interval's end is without a window.
void read_layer_types(Reader& reader, LlamaConfig& out) {
  const std::int64_t interval = reader.integer("sliding_window_pattern", 1, kMaxLayers + 1, 6);
  const Json* list = reader.find("layer_types");
  require(!list || (list->is_array() && std::ssize(*list) == out.layers), ErrorCode::config_invalid,
          "{}: layer_types: expected a list of {} types, found {}", reader.source(), out.layers,
          list ? Reader::shown(*list) : "");
  for (std::int64_t layer = 0; layer < out.layers; ++layer) {
    const Json type = list ? (*list)[static_cast<std::size_t>(layer)]
                           : Json((layer + 1) % interval == 0 ? kFullAttention : kWindowedAttention);
    if (type == kFullAttention)
      out.layers_without_window.push_back(layer);
    else if (type != kWindowedAttention)
      reader.unsupported("layer_types", Reader::shown(type));
  }
}

/// A window that is at least as long as the longest sequence has no effect. Architectures without a default window can
/// limit it to some of their layers.
void read_attention_window(Reader& reader, const Json& json, LlamaConfig& out) {
  const std::int64_t usual = row_of(out.architecture).window;
  const bool is_gemma = out.architecture == Architecture::gemma3, has_window = usual > 0;
  const bool uses_window = has_window || reader.boolean("use_sliding_window", false);
  reader.find("sliding_window");
  if (uses_window) {
    const std::int64_t missing = has_window && !json.contains("sliding_window") ? usual : out.positions;
    const std::int64_t window = reader.integer("sliding_window", 1, kMaxSize, missing);
    const bool is_short = window < out.positions;
    if (is_short && !has_window) reader.unsupported("use_sliding_window", fmt::format("a window of {}", window));
    if (is_short || is_gemma) out.window = window;  // Gemma's layers with a window have other positions, too
  }
  if (is_gemma) return read_layer_types(reader, out);
  const Json* types = reader.find("layer_types");
  if (!types) return;
  for (const Json& type : *types)
    if (type != kFullAttention) reader.unsupported("layer_types", Reader::shown(type));
}

/// Gemma 3, besides its windows and positions.
void read_gemma(Reader& reader, LlamaConfig& out) {
  out.norms_of_outputs = out.norms_around_one = out.scaled_embeddings = true;
  out.ffn_activation = ActivationFunction::gelu;
  out.query_scalar = reader.real("query_pre_attn_scalar", 1e-6, 1e6, 256);
  reader.find("hidden_act");  // not used
  reader.only("attn_logit_softcapping", nullptr);
  reader.only("final_logit_softcapping", nullptr);
  reader.only("use_bidirectional_attention", false);
}

/// SmolLM3: `no_rope_layers` has a 0 for each layer without, or else every layer of an interval's end is without.
void read_rope_layers(Reader& reader, LlamaConfig& out) {
  if (out.architecture != Architecture::smollm3) return;
  const std::int64_t interval = reader.integer("no_rope_layer_interval", 1, kMaxLayers + 1, 4);
  const Json* list = reader.find("no_rope_layers");
  require(!list || (list->is_array() && std::ssize(*list) >= out.layers &&
                    std::ranges::all_of(*list, [](const Json& uses) { return uses == 0 || uses == 1; })),
          ErrorCode::config_invalid,
          "{}: no_rope_layers: expected a list of 0 or 1 for each of the {} layers, found {}", reader.source(),
          out.layers, list ? Reader::shown(*list) : "");
  for (std::int64_t layer = 0; layer < out.layers; ++layer)
    if (list ? (*list)[static_cast<std::size_t>(layer)] == 0 : (layer + 1) % interval == 0)
      out.layers_without_rope.push_back(layer);
}

void check_sizes(const LlamaConfig& c, const std::string& source) {
  require(c.heads % c.key_value_heads == 0, ErrorCode::config_conflict,
          "{}: num_attention_heads must be a multiple of num_key_value_heads, found {} and {}", source, c.heads,
          c.key_value_heads);
  require(c.head_size % 2 == 0, ErrorCode::config_conflict,
          "{}: the size of a head must be even, since pairs of its elements are rotated, found {}", source,
          c.head_size);
}

/// Returns the configuration of the decoder, and leaves that of all other parts in `json`. Both may have keys of the
/// decoder.
Json take_text_config(Json& json) {
  Json text = std::move(json["text_config"]);
  json.erase("text_config");
  for (const char* key : {"bos_token_id", "eos_token_id", "tie_word_embeddings"})
    if (text.is_object() && !text.contains(key) && json.contains(key)) text[key] = json[key];
  for (const char* key : {"dtype", "torch_dtype"}) json.erase(key);  // of the file's tensors
  return text;
}

/// What a model may have beside its decoder. Images are not computed, so the values may be anything.
void check_others(const Json& json, const ArchitectureRow& row, const std::string& source) {
  const Json classes = json.value("architectures", Json());
  require(
      row.composite != nullptr && classes == Json::array({row.composite}), ErrorCode::model_feature,
      "{}: architectures: a decoder in text_config is supported in Gemma3ForConditionalGeneration only, found {} with "
      "{}",
      source, Reader::shown(classes), row.class_name);
  Reader reader(json, source);
  for (const char* key : {"boi_token_index", "bos_token_id", "eoi_token_index", "eos_token_id", "image_token_index",
                          "initializer_range", "mm_tokens_per_image", "tie_word_embeddings", "vision_config"})
    reader.find(key);
  reader.finish();
}

}  // namespace

LlamaConfig parse_llama_config(const std::string& text, const std::string& source,
                               const std::vector<std::string>& ignore_keys) {
  Json json = parse_json(text, source, ErrorCode::config_unreadable);
  for (const std::string& key : ignore_keys)
    if (json.is_object()) json.erase(key);
  const bool is_composite = json.is_object() && json.contains("text_config");
  Json others;
  if (is_composite) {
    Json text = take_text_config(json);
    others = std::exchange(json, std::move(text));
  }
  Reader reader(json, is_composite ? source + ": text_config" : source);
  LlamaConfig out;
  out.architecture = architecture_of(json, source);
  const ArchitectureRow& row = row_of(out.architecture);
  if (is_composite) {
    check_others(others, row, source);
    out.composite = others.dump();
  }
  out.vocabulary = reader.integer("vocab_size", 1, kMaxSize, row.vocabulary);
  out.width = reader.integer("hidden_size", 1, kMaxSize, 0);
  out.ffn_width = reader.integer("intermediate_size", 1, kMaxSize, 0);
  out.layers = reader.integer("num_hidden_layers", 1, kMaxLayers, 0);
  out.heads = reader.integer("num_attention_heads", 1, kMaxHeads, row.heads);
  out.key_value_heads =
      reader.integer("num_key_value_heads", 1, out.heads, row.key_value_heads > 0 ? row.key_value_heads : out.heads);
  if (row.head_size == 0 && !(json.contains("head_dim") && !json["head_dim"].is_null()))
    require(out.width % out.heads == 0, ErrorCode::config_conflict,
            "{}: hidden_size must be a multiple of num_attention_heads unless head_dim is given, found {} and {}",
            source, out.width, out.heads);
  out.head_size =
      reader.integer("head_dim", 1, kMaxHeadSize, row.head_size > 0 ? row.head_size : out.width / out.heads);
  out.positions = reader.integer("max_position_embeddings", 1, kMaxSize, row.positions);
  const bool attention_bias = reader.boolean("attention_bias", false) && row.has_attention_bias_key;
  out.query_key_value_bias = row.query_key_value_bias || attention_bias;
  out.output_bias = attention_bias;
  out.ffn_bias = reader.boolean("mlp_bias", false) && row.has_ffn_bias_key;
  out.query_key_norm = row.query_key_norm;
  out.tied_embeddings = reader.boolean("tie_word_embeddings", row.tied_embeddings);
  out.norm_epsilon = reader.real("rms_norm_eps", 1e-12, 1, out.norm_epsilon);
  out.initializer_range = reader.real("initializer_range", 0, 100, out.initializer_range);
  reader.only(row.activation_key, row.activation);
  if (out.architecture == Architecture::gemma3) read_gemma(reader, out);
  reader.only("attention_dropout", 0.0);
  reader.only("hidden_dropout", 0.0);
  reader.only("quantization_config", nullptr);
  reader.only("rope_interleaved", false);
  check_sizes(out, source);
  out.rope_theta = row.rope_theta;
  read_rope(reader, out);
  read_rope_layers(reader, out);
  read_tokens(reader, out);
  read_attention_window(reader, json, out);
  reader.finish();
  return out;
}

nlohmann::ordered_json to_json(const LlamaConfig& c) {
  const ArchitectureRow& row = row_of(c.architecture);
  nlohmann::ordered_json json{{"architectures", {row.class_name}},
                              {"model_type", row.model_type},
                              {"vocab_size", c.vocabulary},
                              {"hidden_size", c.width},
                              {"intermediate_size", c.ffn_width},
                              {"num_hidden_layers", c.layers},
                              {"num_attention_heads", c.heads},
                              {"num_key_value_heads", c.key_value_heads},
                              {"head_dim", c.head_size},
                              {"max_position_embeddings", c.positions},
                              {row.activation_key, row.activation},
                              {"rms_norm_eps", c.norm_epsilon},
                              {"initializer_range", c.initializer_range},
                              {"tie_word_embeddings", c.tied_embeddings},
                              {"rope_theta", c.rope_theta}};
  if (row.has_attention_bias_key) json["attention_bias"] = c.query_key_value_bias;
  if (row.has_ffn_bias_key) json["mlp_bias"] = c.ffn_bias;
  if (c.architecture == Architecture::mistral)
    json["sliding_window"] = c.window > 0 ? nlohmann::ordered_json(c.window) : nlohmann::ordered_json();
  if (c.architecture == Architecture::smollm3) {
    for (std::int64_t layer = 0; layer < c.layers; ++layer) json["no_rope_layers"].push_back(c.has_rope(layer) ? 1 : 0);
    json["pad_token_id"] = nullptr;  // the default in transformers, 128004, is not in every vocabulary
  }
  if (c.architecture == Architecture::gemma3) {
    json["query_pre_attn_scalar"] = c.query_scalar;
    if (c.query_scalar == std::floor(c.query_scalar))  // transformers 5 accepts nothing else
      json["query_pre_attn_scalar"] = static_cast<std::int64_t>(c.query_scalar);
    json["sliding_window"] = c.window;
    json["rope_local_base_freq"] = c.local_rope_theta;
    for (std::int64_t layer = 0; layer < c.layers; ++layer)
      json["layer_types"].push_back(c.window_of(layer) > 0 ? kWindowedAttention : kFullAttention);
  }
  const RopeScaling& scaling = c.rope_scaling;
  if (scaling.kind == RopeScaling::Kind::linear)
    json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", scaling.factor}};
  if (scaling.kind == RopeScaling::Kind::llama3)
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", scaling.factor},
                            {"low_freq_factor", scaling.low_frequency_factor},
                            {"high_freq_factor", scaling.high_frequency_factor},
                            {"original_max_position_embeddings", scaling.original_positions}};
  json["bos_token_id"] = c.begin_token < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(c.begin_token);
  if (c.end_tokens.empty())
    json["eos_token_id"] = nullptr;
  else if (c.end_tokens.size() == 1)
    json["eos_token_id"] = c.end_tokens.front();
  else
    json["eos_token_id"] = c.end_tokens;
  if (c.composite.empty()) return json;
  auto composite = nlohmann::ordered_json::parse(c.composite);
  composite["text_config"] = std::move(json);
  return composite;
}

std::string_view LlamaConfig::type() const { return row_of(architecture).model_type; }

std::int64_t LlamaConfig::n_parameters() const {
  const std::int64_t q = heads * head_size, kv = key_value_heads * head_size;
  std::int64_t layer = width * (q + 2 * kv) + q * width + 3 * width * ffn_width + 2 * width;
  if (query_key_value_bias) layer += q + 2 * kv;
  if (output_bias) layer += width;
  if (ffn_bias) layer += 2 * ffn_width + width;
  if (query_key_norm) layer += 2 * head_size;
  if (norms_of_outputs) layer += 2 * width;
  return layers * layer + width + (tied_embeddings ? 1 : 2) * vocabulary * width;
}

bool LlamaConfig::has_rope(std::int64_t layer) const { return !std::ranges::binary_search(layers_without_rope, layer); }

std::int64_t LlamaConfig::window_of(std::int64_t layer) const {
  return std::ranges::binary_search(layers_without_window, layer) ? 0 : window;
}

std::vector<double> LlamaConfig::rope_frequencies(bool is_local) const {
  const double theta = is_local ? local_rope_theta : rope_theta;
  const RopeScaling::Kind kind = is_local ? RopeScaling::Kind::none : rope_scaling.kind;
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < head_size / 2; ++i) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_size));
    if (kind == RopeScaling::Kind::linear) frequency /= rope_scaling.factor;
    if (kind == RopeScaling::Kind::llama3) {
      // Long waves are slowed down by the factor, short ones are kept, and those in between are interpolated.
      const double periods = static_cast<double>(rope_scaling.original_positions) * frequency / (2 * std::numbers::pi);
      const double low = rope_scaling.low_frequency_factor, high = rope_scaling.high_frequency_factor;
      const double kept = std::clamp((periods - low) / (high - low), 0.0, 1.0);
      frequency *= kept + (1 - kept) / rope_scaling.factor;
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

// ------------------------------------------------------------------------------------------------------------ presets

namespace {

struct Preset {
  const char* name;
  LlamaConfig config;
};

/// Sources: the config.json of HuggingFaceTB/SmolLM-135M and of Qwen/Qwen2-0.5B.
const std::vector<Preset>& presets() {
  static const std::vector<Preset> all{
      {"smollm-135m",
       {.architecture = Architecture::llama,
        .vocabulary = 49152,
        .width = 576,
        .ffn_width = 1536,
        .layers = 30,
        .heads = 9,
        .key_value_heads = 3,
        .head_size = 64,
        .positions = 2048,
        .tied_embeddings = true,
        .norm_epsilon = 1e-5,
        .rope_scaling = {},
        .begin_token = 0,
        .end_tokens = {0}}},
      {"qwen2-0.5b",
       {.architecture = Architecture::qwen2,
        .vocabulary = 151936,
        .width = 896,
        .ffn_width = 4864,
        .layers = 24,
        .heads = 14,
        .key_value_heads = 2,
        .head_size = 64,
        .positions = 131072,
        .query_key_value_bias = true,
        .tied_embeddings = true,
        .norm_epsilon = 1e-6,
        .rope_theta = 1e6,
        .rope_scaling = {},
        .begin_token = 151643,
        .end_tokens = {151643}}},
  };
  return all;
}

}  // namespace

std::vector<std::string> llama_presets() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

std::optional<LlamaConfig> llama_preset(const std::string& name) {
  for (const Preset& preset : presets())
    if (name == preset.name) return preset.config;
  return std::nullopt;
}

}  // namespace lockstep::models
