// The documents of a text set one by one, as the prompts and answers of conversations. For evaluations that generate
// answers; training reads windows (text_set.h).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/text_range.h"

namespace lockstep::data {

/// The prompt of an answer is all tokens before it. The last token of an answer ends it, such as <|im_end|>.
struct Conversation {
  std::vector<std::int32_t> tokens;
  std::vector<std::pair<std::int64_t, std::int64_t>> answers;  // ranges [begin, end) within `tokens`, ascending
};

class Conversations {
 public:
  /// [first, end) is a range of the conversations of a file; end 0: up to the last. A file of text can be opened, too;
  /// its documents have no answers.
  explicit Conversations(const std::string& path, std::int64_t first = 0, std::int64_t end = 0)
      : range_(path, first, end) {}

  std::int64_t n_conversations() const { return range_.n_documents(); }
  /// Whether the file contains conversations, not text.
  bool has_answers() const { return range_.layout().has_answers(); }
  const TextDescription& description() const { return range_.layout().description; }
  const InputFile& file() const { return range_.file(); }
  /// The content of tokenizer.json.
  std::string tokenizer() const { return read_tokenizer(range_.file(), range_.layout()); }

  /// Number i of the range.
  Conversation read(std::int64_t i) const;

 private:
  TextRange range_;
};

}  // namespace lockstep::data
