// Imports text: documents from text files and JSON Lines are tokenised by several threads and written as a text set
// (text_file.h), in the order of the sources. Memory is bounded, whatever the number of documents.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/import.h"
#include "data/text_file.h"
#include "data/text_source.h"

namespace lockstep::data {

/// What the import needs of a tokenizer.
struct TextEncoder {
  /// Appends the ids of a document. Called by several threads at once.
  std::function<void(std::string_view text, std::vector<std::int32_t>& ids)> encode;
  int vocabulary_size = 0;
  std::optional<std::int32_t> end_token;  // appended to each document
  std::string hash;                       // of the tokenizer
  std::string path, json;                 // the tokenizer's file and its content
};

struct TextImportOptions {
  /// Text files (one document each), JSON Lines (*.jsonl: one document per line) and folders (their *.txt and *.jsonl
  /// files, sorted by path).
  std::vector<std::string> sources{};
  std::string output{};
  std::string field = "text";                        // of a line of JSON
  std::int64_t start = 0;                            // the first document, over all sources
  std::int64_t end = 0;                              // the document after the last; 0: all
  bool replace = false;                              // replace an existing output
  std::uint64_t max_line_bytes = kMaxDocumentBytes;  // of JSON Lines
  int threads = 0;                                   // 0: as many as cores
};

struct TextImportResult {
  std::int64_t n_documents = 0, n_tokens = 0;
  std::int64_t n_empty = 0;      // documents without a token, which were left out
  std::uint64_t text_bytes = 0;  // of the documents
  std::uint64_t size_bytes = 0;  // of the output
  std::size_t n_files = 0;
};

/// `progress` counts bytes of the sources. It is called between documents and may throw, which ends the import. Throws
/// data_source for sources that cannot be imported, with file and line.
TextImportResult import_text(const TextImportOptions& options, const TextEncoder& encoder,
                             const ImportProgress& progress = {});

}  // namespace lockstep::data
