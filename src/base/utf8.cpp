#include "base/utf8.h"

#include <cstdint>
#include <cstring>

namespace lockstep {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD
constexpr std::uint64_t kHighBits = 0x8080808080808080;

}  // namespace

CodePoint code_point_at(std::string_view text, std::size_t position) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[position + i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {first, 1, true};
  if (first < 0xc2 || first > 0xf4) return {0, 1, false};
  const std::size_t n_bytes = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // The second byte of some sequences has a smaller range: overlong forms, surrogates, above U+10FFFF.
  const unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  char32_t value = first & (0x7fu >> n_bytes);
  for (std::size_t i = 1; i < n_bytes; ++i) {
    if (position + i >= text.size()) return {0, i, false};
    const unsigned next = byte(i);
    if (next < (i == 1 ? low : 0x80u) || next > (i == 1 ? high : 0xbfu)) return {0, i, false};
    value = value << 6 | (next & 0x3fu);
  }
  return {value, n_bytes, true};
}

void append_code_point(std::string& text, char32_t value) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (value < 0x80) return put(value);
  if (value < 0x800) {
    put(0xc0 | value >> 6);
  } else if (value < 0x10000) {
    put(0xe0 | value >> 12);
    put(0x80 | (value >> 6 & 0x3f));
  } else {
    put(0xf0 | value >> 18);
    put(0x80 | (value >> 12 & 0x3f));
    put(0x80 | (value >> 6 & 0x3f));
  }
  put(0x80 | (value & 0x3f));
}

std::size_t valid_length(std::string_view text) {
  std::size_t position = 0;
  while (position < text.size()) {
    std::uint64_t eight = kHighBits;
    if (position + sizeof eight <= text.size()) std::memcpy(&eight, text.data() + position, sizeof eight);
    if ((eight & kHighBits) == 0) {
      position += sizeof eight;
      continue;
    }
    const CodePoint next = code_point_at(text, position);
    if (!next.is_valid) break;
    position += next.n_bytes;
  }
  return position;
}

std::string_view valid_utf8(std::string_view text, std::string& repaired) {
  std::size_t n_valid = valid_length(text);
  if (n_valid == text.size()) return text;
  repaired.clear();
  while (n_valid < text.size()) {
    repaired.append(text.substr(0, n_valid)).append(kReplacement);
    text.remove_prefix(n_valid + code_point_at(text, n_valid).n_bytes);
    n_valid = valid_length(text);
  }
  return repaired.append(text);
}

std::string valid_utf8(std::string_view text) {
  std::string repaired;
  return std::string(valid_utf8(text, repaired));
}

}  // namespace lockstep
