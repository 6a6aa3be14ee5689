// The files of karpathy's llama2.c in its first format, without a magic number: seven int32 (width, FFN width, layers,
// heads, key-value heads, vocabulary, positions), then fp32 tensors. Source: karpathy/llama2.c, export.py
// (legacy_export) and run.c (memory_map_weights).
//
// In llama2.c, the rotary embedding rotates the pairs of elements (2i, 2i + 1) of a head; in transformers, it rotates
// the pairs (i, i + head_size / 2). The rows of the query and key matrices are permuted accordingly, which changes no
// value and no result of attention.
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/model_file.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::int32_t kLaterMagic = 0x616b3432;  // "ak42", the magic number of formats 1 and 2
constexpr std::int64_t kBeginToken = 1, kEndToken = 2;

struct Header {
  std::int32_t width = 0, ffn_width = 0, layers = 0, heads = 0, key_value_heads = 0;
  std::int32_t vocabulary = 0;  // negative: the output matrix is not tied to the embedding, but stored at the end
  std::int32_t positions = 0;

  std::int64_t head_size() const { return width / heads; }
  std::int64_t key_value_width() const { return head_size() * key_value_heads; }
  std::int64_t n_words() const { return std::abs(static_cast<std::int64_t>(vocabulary)); }
  bool is_tied() const { return vocabulary > 0; }
};
static_assert(sizeof(Header) == 7 * sizeof(std::int32_t));

/// A part of the file: one tensor, or one tensor per layer.
enum class Rows : std::uint8_t { plain, interleaved };
struct Block {
  const char* name;  // of the tensor; in a layer, without "model.layers.0." and ".weight"; "": not used
  Shape shape;
  std::int64_t n_layers = 0;  // 0: not in a layer
  Rows rows = Rows::plain;

  std::int64_t n_tensors() const { return std::max<std::int64_t>(n_layers, 1); }
  std::string name_in(std::int64_t layer) const {
    return n_layers > 0 ? fmt::format("model.layers.{}.{}.weight", layer, name) : name;
  }
};

std::vector<Block> blocks_of(const Header& h) {
  const std::int64_t d = h.width, f = h.ffn_width, kv = h.key_value_width(), n = h.layers;
  const auto layer = [n](const char* name, const Shape& shape, Rows rows = Rows::plain) {
    return Block{.name = name, .shape = shape, .n_layers = n, .rows = rows};
  };
  std::vector<Block> blocks{{.name = "model.embed_tokens.weight", .shape = {h.n_words(), d}},
                            layer("input_layernorm", {d}),
                            layer("self_attn.q_proj", {d, d}, Rows::interleaved),
                            layer("self_attn.k_proj", {kv, d}, Rows::interleaved),
                            layer("self_attn.v_proj", {kv, d}),
                            layer("self_attn.o_proj", {d, d}),
                            layer("post_attention_layernorm", {d}),
                            layer("mlp.gate_proj", {f, d}),
                            layer("mlp.down_proj", {d, f}),
                            layer("mlp.up_proj", {f, d}),
                            {.name = "model.norm.weight", .shape = {d}},
                            // Cosines and sines of the rotary embedding, which run.c does not read either.
                            {.name = "", .shape = {2, h.positions, h.head_size() / 2}}};
  if (!h.is_tied()) blocks.push_back({.name = "lm_head.weight", .shape = {h.n_words(), d}});
  return blocks;
}

void check(const Header& h, const std::string& path, std::uint64_t file_bytes) {
  const auto damaged = ErrorCode::model_file_damaged;
  for (const std::int32_t size : {h.width, h.ffn_width, h.layers, h.heads, h.key_value_heads, h.positions})
    require(size > 0, damaged, "{} is damaged or not a file of llama2.c: it has a size of {}", path, size);
  require(h.vocabulary != 0, damaged, "{} is damaged or not a file of llama2.c: its vocabulary is empty", path);
  require(h.width % h.heads == 0 && h.heads % h.key_value_heads == 0 && h.head_size() % 2 == 0, damaged,
          "{} is damaged or not a file of llama2.c: {} heads and {} key-value heads do not fit the width {}", path,
          h.heads, h.key_value_heads, h.width);
  std::uint64_t n_bytes = sizeof(Header);
  bool fits = true;
  for (const Block& block : blocks_of(h)) {
    std::uint64_t size = sizeof(float);
    for (int i = 0; i < block.shape.rank(); ++i)
      fits = fits && !__builtin_mul_overflow(size, static_cast<std::uint64_t>(block.shape[i]), &size);
    fits = fits && !__builtin_mul_overflow(size, static_cast<std::uint64_t>(block.n_tensors()), &size) &&
           !__builtin_add_overflow(n_bytes, size, &n_bytes);
  }
  require(fits && n_bytes == file_bytes, damaged,
          "{} is truncated or not a file of llama2.c: a model of {} layers of width {} with a vocabulary of {} has {} "
          "bytes, the file has {}",
          path, h.layers, h.width, h.n_words(), fits ? std::to_string(n_bytes) : "too many", file_bytes);
}

/// Reorders the rows of each head: first 0, 2, 4, ..., and then 1, 3, 5, ...
std::vector<float> half_split(const std::vector<float>& interleaved, std::int64_t row_size, std::int64_t head_size) {
  std::vector<float> out(interleaved.size());
  const std::int64_t n_rows = static_cast<std::int64_t>(interleaved.size()) / row_size, half = head_size / 2;
  for (std::int64_t row = 0; row < n_rows; ++row) {
    const std::int64_t head = row / head_size, i = row % head_size;
    const std::int64_t from = head * head_size + (i < half ? 2 * i : 2 * (i - half) + 1);
    std::copy_n(interleaved.begin() + from * row_size, row_size, out.begin() + row * row_size);
  }
  return out;
}

std::string config_of(const Header& h) {
  nlohmann::ordered_json config{{"architectures", {"LlamaForCausalLM"}},
                                {"model_type", "llama"},
                                {"vocab_size", h.n_words()},
                                {"hidden_size", h.width},
                                {"intermediate_size", h.ffn_width},
                                {"num_hidden_layers", h.layers},
                                {"num_attention_heads", h.heads},
                                {"num_key_value_heads", h.key_value_heads},
                                {"max_position_embeddings", h.positions},
                                {"hidden_act", "silu"},
                                {"rms_norm_eps", 1e-5},
                                {"rope_theta", 10000.0},
                                {"tie_word_embeddings", h.is_tied()}};
  // The token ids of Llama's SentencePiece tokenizer, which llama2.c always uses.
  if (h.n_words() > kEndToken) config.update({{"bos_token_id", kBeginToken}, {"eos_token_id", kEndToken}});
  return config.dump(2) + "\n";
}

}  // namespace

ModelFile read_llama2c(const std::string& path) {
  const auto file = std::make_shared<const Descriptor>(open_regular_file(path, ErrorCode::cannot_open));
  const std::uint64_t file_bytes = size_bytes(*file, path);
  require(file_bytes >= sizeof(Header), ErrorCode::model_file_damaged, "{} is not a file of llama2.c: it has {} bytes",
          path, file_bytes);
  Header header;
  read_at(*file, path, std::as_writable_bytes(std::span(&header, 1)), 0, ErrorCode::model_file_damaged);
  require(header.width != kLaterMagic, ErrorCode::model_feature,
          "{} has format {} of llama2.c; only the first one is read: export it with `export.py --version 0`", path,
          header.ffn_width);
  check(header, path, file_bytes);

  ModelFile out{.path = path, .state = StateJson::object(), .tensors = {}, .config = config_of(header)};
  std::uint64_t at = sizeof(Header);
  for (const Block& block : blocks_of(header)) {
    const auto n_elements = static_cast<std::size_t>(block.shape.n_elements());
    for (std::int64_t layer = 0; layer < block.n_tensors(); ++layer, at += n_elements * sizeof(float)) {
      if (*block.name == '\0') continue;
      out.tensors.emplace_back(
          block.name_in(layer), block.shape,
          read_at_once([file, path, at, n_elements, is_interleaved = block.rows == Rows::interleaved, header] {
            std::vector<float> values(n_elements);
            read_at(*file, path, std::as_writable_bytes(std::span(values)), at, ErrorCode::model_file_damaged);
            return is_interleaved ? half_split(values, header.width, header.head_size()) : values;
          }));
    }
  }
  return out;
}

}  // namespace lockstep::checkpoint
