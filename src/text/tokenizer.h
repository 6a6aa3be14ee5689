// Tokenizers of language models: text to ids and back, like Hugging Face's library `tokenizers` and llama2.c.
//
// A text passes through these steps. Each of them is a file of this folder.
//   1. Bytes that are not UTF-8 become U+FFFD (utf8.h).
//   2. Added tokens such as <|endoftext|> are found; the rest is normalised, and searched again (added_tokens.h,
//      normalizer.h).
//   3. What remains is cut into words (tokenizer_parts.h), and each word into tokens (byte_pair_encoding.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

/// Whether encode() adds what the template of the tokenizer puts before and after each text, usually a begin token.
enum class TemplateTokens : std::uint8_t { add, omit };

/// All functions are thread-safe.
class Tokenizer {
 public:
  /// `path`: a tokenizer.json, a tokenizer.bin of llama2.c, or a folder with either. tokenizer_config.json beside a
  /// tokenizer.json names the tokens for the begin and the end of a text.
  /// Throws cannot_open, model_file_damaged, or model_feature, which names what is not supported.
  static Tokenizer open(const std::string& path);
  /// Makes a tokenizer from the content of such a file. `name` is for messages.
  static Tokenizer parse(std::string name, std::string content);
  Tokenizer(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// The file that was opened.
  const std::string& path() const;
  const std::string& content() const;
  /// One more than the largest id.
  std::int32_t vocabulary_size() const;
  /// xxh3 of everything that the ids of a text depend on, as 16 hexadecimal digits. It does not depend on how the file
  /// is formatted.
  const std::string& hash() const;
  std::optional<std::int32_t> begin_token() const;
  std::optional<std::int32_t> end_token() const;

  /// Whether it is an added token, such as <|endoftext|>, which is found in a text before anything else is done.
  bool is_added(std::int32_t id) const;
  /// Whether it is an added token that transformers' `skip_special_tokens` leaves out.
  bool is_special(std::int32_t id) const;

  /// Appends the ids of a text.
  void encode(std::string_view text, std::vector<std::int32_t>& ids,
              TemplateTokens template_tokens = TemplateTokens::add) const;
  /// The text of all ids, including special tokens. Throws data_source if an id is not in the vocabulary.
  std::string decode(std::span<const std::int32_t> ids) const;
  /// The ids without those that the template has added, if they are there: decode(without_template(ids)) undoes
  /// encode().
  std::span<const std::int32_t> without_template(std::span<const std::int32_t> ids) const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

enum class SpecialTokens : std::uint8_t { keep, skip };

/// The text of tokens of a model whose vocabulary may be larger than that of its tokenizer: ids that the tokenizer does
/// not have are left out.
std::string decode_known(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                         SpecialTokens special = SpecialTokens::keep);

}  // namespace lockstep::text
