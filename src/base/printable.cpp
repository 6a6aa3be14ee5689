#include "base/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace lockstep {
namespace {

constexpr std::size_t kMaxLineBytes = 4000;  // a path has up to 4096

/// The number of bytes of the character that `text` begins with; 0 if it is not valid.
std::size_t utf8_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t n = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < n) return 0;
  std::uint32_t code = first & (0xFFu >> (n + 1));
  for (std::size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr std::array<std::uint32_t, 5> kSmallest{0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code < kSmallest[n] || code > 0x10FFFF || is_surrogate ? 0 : n;
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

/// U+0080 to U+009F, which some terminals execute like their two-byte forms: U+009B is ESC [.
bool is_c1(std::string_view text) {
  return text.size() >= 2 && text[0] == '\xC2' && static_cast<unsigned char>(text[1]) < 0xA0;
}

/// The start of the character that contains the byte `at`, which is at most three bytes before it.
std::size_t character_begin(std::string_view text, std::size_t at) {
  while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

std::string cut(std::string text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  const std::size_t head = character_begin(text, max_bytes * 2 / 3);
  const std::size_t tail = character_begin(text, text.size() - max_bytes / 4);
  return fmt::format("{}[... {} bytes ...]{}", std::string_view(text).substr(0, head), tail - head,
                     std::string_view(text).substr(tail));
}

std::string escaped(std::string_view text, std::string_view kept) {
  std::string out;
  while (!text.empty()) {
    const std::size_t n = utf8_character(text);
    const bool is_kept = kept.find(text[0]) != std::string_view::npos;
    if (n == 0 || (is_control(text[0]) && !is_kept) || is_c1(text))
      for (const char c : text.substr(0, std::max<std::size_t>(n, 1)))
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += text.substr(0, n);
    text.remove_prefix(std::max<std::size_t>(n, 1));
  }
  return out;
}

}  // namespace

std::size_t valid_utf8_length(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t n = utf8_character(text.substr(at));
    if (n == 0) break;
    at += n;
  }
  return at;
}

bool has_control_characters(std::string_view text) { return std::ranges::any_of(text, is_control); }

std::string printable(std::string_view text, std::size_t max_bytes) { return cut(escaped(text, ""), max_bytes); }

std::string printable_lines(std::string_view text) {
  std::string out;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    out += cut(escaped(text.substr(begin, end - begin), "\t"), kMaxLineBytes);
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return out;
}

}  // namespace lockstep
