// The normalizers of a tokenizer.json: NFC, Prepend and Replace (of a fixed text), one after the other.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::text {

struct NormalizerStep {
  enum class Kind { nfc, prepend, replace } kind = Kind::nfc;
  std::string pattern;  // replace: what is replaced; not empty
  std::string content;  // prepend: put before a text that is not empty; replace: what replaces it
};

/// Appends the text in Unicode's normalisation form C (UAX #15) to `out`. The text must be valid UTF-8. The time is
/// proportional to n log n for n combining marks in a row, and to the length otherwise.
void append_nfc(std::string_view text, std::string& out);

/// The maximum number of bytes of a text after replacing. Known tokenizers turn one byte into three (a blank becomes
/// U+2581); the limit guards against damaged files.
inline std::size_t max_replaced_bytes(std::size_t text_bytes) { return 4096 + 32 * text_bytes; }

/// Appends the text with `content` in place of each `pattern`, which must not be empty. Throws data_source if `out`
/// becomes longer than `max_bytes`.
void append_replaced(std::string_view text, std::string_view pattern, std::string_view content, std::size_t max_bytes,
                     std::string& out);

class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  /// `text` itself if nothing changes; otherwise one of the buffers, which are overwritten.
  std::string_view apply(std::string_view text, std::string (&buffers)[2]) const;

 private:
  std::vector<NormalizerStep> steps_;
};

/// The version of utf8proc, for lists of versions.
std::string utf8proc_version();

}  // namespace lockstep::text
