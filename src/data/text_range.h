// A file of a text set and a range of its documents, checked and open for reading: what windows (text_set.h) and
// conversations (conversations.h) read tokens through. Holds the positions of the documents and answers of the range in
// memory, 8 and 16 bytes each.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/text_file.h"

namespace lockstep::data {

class TextRange {
 public:
  /// [first, end) is a range of the documents; end 0: up to the last. Throws data_range if there is no such range.
  TextRange(const std::string& path, std::int64_t first, std::int64_t end);

  const InputFile& file() const { return file_; }
  const TextFile& layout() const { return layout_; }
  std::int64_t first_document() const { return first_; }
  std::int64_t n_documents() const { return static_cast<std::int64_t>(documents_.size()) - 1; }
  std::int64_t n_tokens() const { return static_cast<std::int64_t>(documents_.back() - documents_.front()); }
  /// Positions in /tokens: of each document of the range, and the end of the last.
  const std::vector<std::uint64_t>& documents() const { return documents_; }
  /// Document number i of the range.
  TokenRange document(std::size_t i) const { return {documents_[i], documents_[i + 1]}; }
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
