#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "base/signals.h"
#include "base/utf8.h"
#include "lockstep/error.h"

namespace lockstep::text {
namespace {

constexpr utf8proc_int32_t kEndOfUnicode = 0x110000;
constexpr std::size_t kMaxDecomposition = 32;  // code points; the longest canonical one has 4

using CodePoints = std::vector<utf8proc_int32_t>;

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

void append_decomposition(utf8proc_int32_t c, CodePoints& out) {
  std::array<utf8proc_int32_t, kMaxDecomposition> sequence{};
  int boundary = 0;
  const auto n = utf8proc_decompose_char(c, sequence.data(), kMaxDecomposition, UTF8PROC_DECOMPOSE, &boundary);
  require(n > 0 && n <= static_cast<utf8proc_ssize_t>(kMaxDecomposition), ErrorCode::internal,
          "utf8proc decomposes U+{:04X} into {} code points", c, n);
  out.insert(out.end(), sequence.begin(), sequence.begin() + n);
}

/// Sorts runs of combining marks by their class, and composes characters where possible. utf8proc itself sorts in
/// quadratic time.
void order_and_compose(CodePoints& points) {
  for (auto begin = points.begin(); begin != points.end();) {
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, points.end(), [](utf8proc_int32_t c) { return combining_class(c) == 0; });
    std::stable_sort(begin, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
  const auto n = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                          static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  require(n >= 0, ErrorCode::internal, "utf8proc cannot compose a text: {}", utf8proc_errmsg(n));
  points.resize(static_cast<std::size_t>(n));
}

/// The code points that NFC leaves unchanged, whatever precedes them.
class InertCodePoints {
 public:
  InertCodePoints() : is_inert_(kEndOfUnicode, true) {
    CodePoints points;
    std::vector<bool> never_first(kEndOfUnicode, false);
    for (utf8proc_int32_t c = 0; c < kEndOfUnicode; ++c) {
      if (combining_class(c) != 0) never_first[at(c)] = true;
      points.clear();
      append_decomposition(c, points);
      if (points.size() == 1 && points[0] == c) continue;
      for (const utf8proc_int32_t later : std::span(points).subspan(1)) never_first[at(later)] = true;
      decomposed_.push_back(c);
    }
    for (std::size_t c = 0; c < is_inert_.size(); ++c) is_inert_[c] = !never_first[c];
    for (const utf8proc_int32_t c : decomposed_) {
      points.clear();
      append_decomposition(c, points);
      const bool begins_inert = !never_first[at(points[0])];
      order_and_compose(points);
      is_inert_[at(c)] = is_inert_[at(c)] && begins_inert && points.size() == 1 && points[0] == c;
    }
  }
  bool contains(char32_t c) const { return is_inert_[c]; }

 private:
  static std::size_t at(utf8proc_int32_t c) { return static_cast<std::size_t>(c); }
  std::vector<bool> is_inert_;
  CodePoints decomposed_;
};

/// The end of the text before the first code point that is not inert.
std::size_t inert_length(std::string_view text, const InertCodePoints& inert) {
  std::size_t position = 0;
  while (position < text.size()) {
    throw_if_stopped();
    const CodePoint next = code_point_at(text, position);
    if (next.value >= 0x80 && !inert.contains(next.value)) break;
    position += next.n_bytes;
  }
  return position;
}

const InertCodePoints& inert_code_points() {
  static const InertCodePoints table;
  return table;
}

}  // namespace

void append_nfc(std::string_view text, std::string& out) {
  const InertCodePoints& inert = inert_code_points();
  CodePoints points;
  while (!text.empty()) {
    throw_if_stopped();
    std::size_t begin = inert_length(text, inert);
    if (begin == text.size()) {
      out += text;
      return;
    }
    // The preceding code point may compose with what follows.
    if (begin > 0) begin = begin_of_last(text, begin);
    out += text.substr(0, begin);
    points.clear();
    std::size_t end = begin;
    for (bool is_first = true; end < text.size(); is_first = false) {
      const CodePoint next = code_point_at(text, end);
      if (!is_first && inert.contains(next.value)) break;
      append_decomposition(static_cast<utf8proc_int32_t>(next.value), points);
      end += next.n_bytes;
    }
    order_and_compose(points);
    for (const utf8proc_int32_t c : points) append_code_point(out, static_cast<char32_t>(c));
    text.remove_prefix(end);
  }
}

void append_replaced(std::string_view text, std::string_view pattern, std::string_view content, std::size_t max_bytes,
                     std::string& out) {
  std::size_t done = 0;
  for (std::size_t found = text.find(pattern); found != std::string_view::npos; found = text.find(pattern, done)) {
    out.append(text.substr(done, found - done)).append(content);
    require(out.size() <= max_bytes, ErrorCode::data_source,
            "the tokenizer's replacement of {} makes a text longer than {} bytes", pattern, max_bytes);
    done = found + pattern.size();
  }
  out.append(text.substr(done));
}

std::string_view Normalizer::apply(std::string_view text, std::string (&buffers)[2]) const {
  const std::size_t max_bytes = max_replaced_bytes(text.size());
  int free = 0;
  for (const NormalizerStep& step : steps_) {
    if (text.empty()) return text;
    std::string& out = buffers[free];
    switch (step.kind) {
      case NormalizerStep::Kind::nfc:
        if (inert_length(text, inert_code_points()) == text.size()) continue;
        out.clear();
        append_nfc(text, out);
        break;
      case NormalizerStep::Kind::prepend:
        out.assign(step.content).append(text);
        break;
      case NormalizerStep::Kind::replace:
        if (text.find(step.pattern) == std::string_view::npos) continue;
        out.clear();
        append_replaced(text, step.pattern, step.content, max_bytes, out);
        break;
    }
    text = out;
    free = 1 - free;
  }
  return text;
}

std::string utf8proc_version() { return ::utf8proc_version(); }

}  // namespace lockstep::text
