#include "text/decoder.h"

#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <utility>

#include "base/utf8.h"
#include "text/normalizer.h"

namespace lockstep::text {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD
constexpr char32_t kFirstSubstitute = 256;
constexpr std::size_t kSubstitutes = 68;

/// Printable bytes stand for themselves. The others are mapped, in order, to the characters from U+0100 on.
bool is_printable(unsigned byte) { return (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad); }

std::array<int, kFirstSubstitute + kSubstitutes> make_alphabet() {
  std::array<int, kFirstSubstitute + kSubstitutes> bytes{};
  std::size_t next = kFirstSubstitute;
  for (unsigned byte = 0; byte < kFirstSubstitute; ++byte) {
    bytes[byte] = is_printable(byte) ? static_cast<int>(byte) : -1;
    if (!is_printable(byte)) bytes[next++] = static_cast<int>(byte);
  }
  return bytes;
}

std::string byte_level(const std::vector<std::string>& tokens) {
  std::string bytes, repaired;
  for (const std::string& token : tokens)
    if (!append_bytes_of_printable(token, bytes)) bytes += token;
  return std::string(valid_utf8(bytes, repaired));
}

/// The byte of a token such as <0x0A>; -1 for any other token.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return -1;
  int byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return error == std::errc() && end == token.data() + 5 && byte >= 0 ? byte : -1;
}

std::vector<std::string> byte_fallback(std::vector<std::string> tokens) {
  std::vector<std::string> out;
  std::string bytes;
  const auto put_bytes = [&] {
    if (bytes.empty()) return;
    if (valid_length(bytes) == bytes.size())
      out.push_back(bytes);
    else
      out.insert(out.end(), bytes.size(), std::string(kReplacement));
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const int byte = fallback_byte(token); byte >= 0) {
      bytes.push_back(static_cast<char>(byte));
      continue;
    }
    put_bytes();
    out.push_back(std::move(token));
  }
  put_bytes();
  return out;
}

void strip(std::string& token, const DecoderStep& step) {
  std::string_view rest = token;
  for (std::size_t i = 0; i < step.start && rest.starts_with(step.content); ++i)
    rest.remove_prefix(step.content.size());
  for (std::size_t i = 0; i < step.stop && rest.ends_with(step.content); ++i) rest.remove_suffix(step.content.size());
  token = std::string(rest);
}

}  // namespace

int byte_of_printable(char32_t c) {
  static const std::array<int, kFirstSubstitute + kSubstitutes> alphabet = make_alphabet();
  return c < alphabet.size() ? alphabet[c] : -1;
}

bool append_bytes_of_printable(std::string_view token, std::string& bytes) {
  const std::size_t n_before = bytes.size();
  for (std::size_t i = 0; i < token.size();) {
    const CodePoint c = code_point_at(token, i);
    const int byte = c.is_valid ? byte_of_printable(c.value) : -1;
    if (byte < 0) {
      bytes.resize(n_before);
      return false;
    }
    bytes.push_back(static_cast<char>(byte));
    i += c.n_bytes;
  }
  return true;
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  std::size_t n_bytes = 0;
  for (const std::string& token : tokens) n_bytes += token.size();
  const std::size_t max_bytes = max_replaced_bytes(n_bytes);
  for (const DecoderStep& step : steps_) {
    switch (step.kind) {
      case DecoderStep::Kind::byte_level:
        tokens = {byte_level(tokens)};
        break;
      case DecoderStep::Kind::replace:
        for (std::string& token : tokens) {
          std::string out;
          append_replaced(token, step.pattern, step.content, max_bytes, out);
          token = std::move(out);
        }
        break;
      case DecoderStep::Kind::byte_fallback:
        tokens = byte_fallback(std::move(tokens));
        break;
      case DecoderStep::Kind::fuse:
        tokens = {fmt::format("{}", fmt::join(tokens, ""))};
        break;
      case DecoderStep::Kind::strip:
        for (std::string& token : tokens) strip(token, step);
        break;
    }
  }
  return fmt::format("{}", fmt::join(tokens, separator_));
}

}  // namespace lockstep::text
