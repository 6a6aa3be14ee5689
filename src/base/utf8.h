// UTF-8: validation, repair and single code points.
//
// Invalid bytes are replaced as in Python's bytes.decode(errors="replace"), Rust's from_utf8_lossy and the WHATWG
// encoding standard: every maximal subpart of an ill-formed sequence becomes one U+FFFD (The Unicode Standard, 3.9).
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

struct CodePoint {
  char32_t value = 0;
  std::size_t n_bytes = 0;  // of an ill-formed sequence: those that one U+FFFD replaces
  bool is_valid = false;
};

/// The code point that begins at `position`, which must be less than text.size().
CodePoint code_point_at(std::string_view text, std::size_t position);
void append_code_point(std::string& text, char32_t value);

/// The length of the prefix that is valid.
std::size_t valid_length(std::string_view text);
inline bool is_utf8(std::string_view text) { return valid_length(text) == text.size(); }
/// `text` itself if it is valid; otherwise `repaired`, which is overwritten.
std::string_view valid_utf8(std::string_view text, std::string& repaired);
/// A valid copy, for example of the name of a file, which need not be UTF-8, for JSON.
std::string valid_utf8(std::string_view text);

inline bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }
/// The beginning of the last code point before `end`, which is not 0. The text is valid.
inline std::size_t begin_of_last(std::string_view text, std::size_t end) {
  do --end;
  while (end > 0 && is_continuation(text[end]));
  return end;
}
/// The number of code points of valid text.
inline std::size_t n_characters(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return !is_continuation(c); }));
}
/// The number of bytes of a code point of valid text, by its first byte.
inline std::size_t n_bytes_of(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

}  // namespace lockstep
