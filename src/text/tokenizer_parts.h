// What the readers of tokenizer files give to a Tokenizer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/byte_pair_encoding.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace lockstep::text {

struct TokenizerParts {
  /// The tokens by id, as the decoder takes them. Nothing: no token has this id.
  std::vector<std::optional<std::string>> tokens;
  std::vector<AddedToken> added_tokens;             // found before the normaliser
  std::vector<AddedToken> normalized_added_tokens;  // found after it
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BytePairModel model;
  Decoder decoder;
  std::vector<std::int32_t> prefix, suffix;  // what the template puts before and after each text
  std::optional<std::int32_t> begin_token, end_token;
  /// Everything that the ids of a text depend on, for the hash.
  std::string canonical;
};

/// No tokenizer has this many tokens; it bounds the memory that a damaged file can request.
inline constexpr std::int32_t kMaxVocabulary = 1 << 24;

/// A file in memory. The name is for messages.
struct NamedContent {
  std::string name, content;
};

inline constexpr std::uint64_t kMaxTokenizerBytes = 64 << 20;

/// Reads a tokenizer.json of Hugging Face's library `tokenizers`: byte pair encoding on bytes or with byte fallback.
/// `config`: the tokenizer_config.json that belongs to it, which names the tokens for the begin and the end of a text.
/// Throws model_file_damaged, and model_feature if the file needs something else.
TokenizerParts read_tokenizer_json(const NamedContent& file, const std::optional<NamedContent>& config);

/// Reads a tokenizer.bin of karpathy's llama2.c: the length of the longest token (int32), then of each token the score
/// (float32), the length (int32) and the bytes. The neighbours with the highest score are merged first. Token 1 begins
/// a text, token 2 ends it, and the 256 tokens from 3 on are bytes. Throws model_file_damaged.
TokenizerParts read_llama2c_tokenizer(const NamedContent& file);

}  // namespace lockstep::text
