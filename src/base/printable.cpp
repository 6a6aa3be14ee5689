#include "base/printable.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxLineBytes = 4000;  // a path has up to 4096

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

/// U+0080 to U+009F, which some terminals execute like their two-byte forms: U+009B is ESC [.
bool is_c1(std::string_view text) {
  return text.size() >= 2 && text[0] == '\xC2' && static_cast<unsigned char>(text[1]) < 0xA0;
}

/// The start of the character that contains the byte `at`, which is at most three bytes before it.
std::size_t character_begin(std::string_view text, std::size_t at) {
  while (at > 0 && at < text.size() && is_continuation(text[at])) --at;
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
    const CodePoint character = code_point_at(text, 0);
    const std::string_view bytes = text.substr(0, character.n_bytes);
    const bool is_kept = kept.find(text[0]) != std::string_view::npos;
    if (!character.is_valid || (is_control(text[0]) && !is_kept) || is_c1(text))
      for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += bytes;
    text.remove_prefix(bytes.size());
  }
  return out;
}

}  // namespace

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
