#include "page/markup.h"

#include <cstddef>
#include <cstdint>

#include "base/utf8.h"

namespace lockstep::page {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// The bytes of the character that a valid UTF-8 text begins with.
std::size_t character_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

std::uint32_t code_of(std::string_view character) {
  std::uint32_t code = static_cast<unsigned char>(character[0]);
  if (character.size() > 1) code &= 0xFFu >> (character.size() + 1);
  for (std::size_t i = 1; i < character.size(); ++i)
    code = code << 6 | (static_cast<unsigned char>(character[i]) & 0x3Fu);
  return code;
}

bool is_forbidden(std::uint32_t code) {
  const bool is_control = (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7F && code < 0xA0);
  const bool is_direction = (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
  return is_control || is_direction || code == 0xFFFE || code == 0xFFFF;
}

/// The width of a character in units of the font size. It is wider than most characters in Arial, DejaVu Sans and
/// Roboto.
double width_of(std::uint32_t code) {
  if (code >= 0x1100) return 1.05;  // Chinese, Japanese, Korean, symbols
  constexpr std::string_view kNarrow = "iljtfrI.,:;|!'()[] /", kWide = "mwMWQO@%&";
  if (code < 0x80 && kNarrow.find(static_cast<char>(code)) != std::string_view::npos) return 0.4;
  if (code < 0x80 && kWide.find(static_cast<char>(code)) != std::string_view::npos) return 0.98;
  return code >= 'A' && code <= 'Z' ? 0.72 : 0.63;
}

}  // namespace

std::string escaped(std::string_view text) {
  const std::string valid = valid_utf8(std::string(text));
  std::string out;
  out.reserve(valid.size());
  for (std::string_view rest = valid; !rest.empty();) {
    const std::string_view character = rest.substr(0, character_bytes(rest));
    rest.remove_prefix(character.size());
    if (character == "&") {
      out += "&amp;";
    } else if (character == "<") {
      out += "&lt;";
    } else if (character == ">") {
      out += "&gt;";
    } else if (character == "\"") {
      out += "&quot;";
    } else if (character == "'") {
      out += "&#39;";
    } else {
      out += is_forbidden(code_of(character)) ? kReplacement : character;
    }
  }
  return out;
}

double text_width(std::string_view text, double font_size) {
  const std::string valid = valid_utf8(std::string(text));
  double width = 0;
  for (std::string_view rest = valid; !rest.empty(); rest.remove_prefix(character_bytes(rest)))
    width += width_of(code_of(rest.substr(0, character_bytes(rest))));
  return width * font_size;
}

std::string shortened(std::string_view text, double font_size, double width) {
  if (text_width(text, font_size) <= width) return std::string(text);
  const std::string valid = valid_utf8(std::string(text));
  std::string out;
  for (std::string_view rest = valid; !rest.empty(); rest.remove_prefix(character_bytes(rest))) {
    const std::string longer = out + std::string(rest.substr(0, character_bytes(rest)));
    if (text_width(longer + "…", font_size) > width) break;
    out = longer;
  }
  return out + "…";
}

}  // namespace lockstep::page
