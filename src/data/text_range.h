// A file of a text set and a range of its documents, checked and open for reading: training reads windows through it
// (text_set.h), and evaluations that generate answers read the conversations one by one. Holds the positions of the
// documents and answers of the range in memory, 8 and 16 bytes each.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/text_file.h"
#include "text/tokenizer.h"

namespace lockstep::data {

/// The prompt of an answer is all tokens before it. The last token of an answer ends it, such as <|im_end|>.
struct Conversation {
  std::vector<std::int32_t> tokens;
  std::vector<std::pair<std::int64_t, std::int64_t>> answers;  // ranges [begin, end) within `tokens`, ascending
};

class TextRange {
 public:
  /// [first, end) is a range of the documents; end 0: up to the last. Throws data_range if there is no such range.
  explicit TextRange(const std::string& path, std::int64_t first = 0, std::int64_t end = 0);

  const InputFile& file() const { return file_; }
  const TextFile& layout() const { return layout_; }
  /// Whether the file contains conversations, not text.
  bool has_answers() const { return layout_.has_answers(); }
  /// The content of tokenizer.json.
  std::string tokenizer() const { return read_tokenizer(file_, layout_); }
  /// The token with which the recorded chat template ends an answer (text::answer_end()). None if the file records no
  /// template that can be used.
  std::optional<std::int32_t> answer_end(const text::Tokenizer& tokenizer) const;

  std::int64_t first_document() const { return first_; }
  std::int64_t n_documents() const { return static_cast<std::int64_t>(documents_.size()) - 1; }
  std::int64_t n_tokens() const { return static_cast<std::int64_t>(documents_.back() - documents_.front()); }
  /// Positions in /tokens: of each document of the range, and the end of the last.
  const std::vector<std::uint64_t>& documents() const { return documents_; }
  /// Document number i of the range.
  TokenRange document(std::size_t i) const { return {documents_[i], documents_[i + 1]}; }
  /// The same as a conversation; a document of text has no answers.
  Conversation conversation(std::int64_t i) const;
  const std::vector<TokenRange>& answers() const { return answers_; }
  /// The answers that have tokens in `tokens`.
  std::span<const TokenRange> answers_in(const TokenRange& tokens) const;

  /// Reads ids.size() tokens from position `begin` on. Thread-safe, without allocation. Throws data_damaged for an id
  /// outside of the vocabulary.
  void read_tokens(std::uint64_t begin, std::span<std::int32_t> ids) const;

 private:
  InputFile file_;
  TextFile layout_;
  std::int64_t first_ = 0;
  std::vector<std::uint64_t> documents_;
  std::vector<TokenRange> answers_;
};

}  // namespace lockstep::data
