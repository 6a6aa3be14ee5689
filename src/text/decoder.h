// The decoders of a tokenizer.json: how the texts of tokens are joined to one text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

struct DecoderStep {
  enum class Kind : std::uint8_t {
    byte_level,     // printable characters back to bytes (GPT-2), then one text; what is not UTF-8 becomes U+FFFD
    replace,        // `pattern` by `content`, in each token
    byte_fallback,  // tokens like <0x0A> in a row to the text of these bytes; U+FFFD for each if it is not UTF-8
    fuse,           // all tokens to one
    strip,          // removes `content` (a character) up to `start` times at the beginning, `stop` times at the end
  } kind = Kind::fuse;
  std::string pattern, content;
  std::size_t start = 0, stop = 0;
};

class Decoder {
 public:
  Decoder() = default;
  Decoder(std::vector<DecoderStep> steps, std::string separator)
      : steps_(std::move(steps)), separator_(std::move(separator)) {}

  std::string decode(std::vector<std::string> tokens) const;

 private:
  std::vector<DecoderStep> steps_;
  std::string separator_;  // between what remains after the last step
};

/// The byte that a character of GPT-2's alphabet stands for; -1: the character does not belong to it.
int byte_of_printable(char32_t c);
/// Such a token as bytes. Returns false and leaves `bytes` as it is if a character does not belong to the alphabet.
bool append_bytes_of_printable(std::string_view token, std::string& bytes);

}  // namespace lockstep::text
