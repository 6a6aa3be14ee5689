// Reads the documents of text files and JSON Lines one after the other. It needs memory only for the longest document.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/file.h"

namespace lockstep::data {

/// A document is held in memory with its ids.
inline constexpr std::uint64_t kMaxDocumentBytes = std::uint64_t{1} << 30;

struct TextDocument {
  std::string text;                         // of the document, or the line of JSON that contains it
  bool is_json = false;                     // a line of JSON
  std::shared_ptr<const std::string> path;  // of its file
  std::int64_t line = 0;                    // of JSON, from 1
};

/// What decides how a file is read: its name, which ends in .jsonl for JSON Lines; or every file is JSON Lines.
enum class SourceFormat : std::uint8_t { by_name, json_lines };

class TextSource {
 public:
  /// Lists the files of `sources` (TextImportOptions::sources). Throws data_source if one of them is missing or, by
  /// name, has one that is neither that of text nor of JSON Lines.
  explicit TextSource(const std::vector<std::string>& sources, SourceFormat format = SourceFormat::by_name,
                      std::uint64_t max_line_bytes = kMaxDocumentBytes);

  const std::vector<std::string>& paths() const { return paths_; }
  std::int64_t total_bytes() const { return static_cast<std::int64_t>(total_bytes_); }
  std::uint64_t done_bytes() const { return done_bytes_; }
  /// The names of the sources: "shakespeare.txt", "a.jsonl, b.jsonl, c.jsonl, d.jsonl, e.jsonl and 3 more"
  const std::string& description() const { return description_; }

  /// Returns false at the end. Blank lines in JSON Lines are not documents. Throws data_source if a file is not text or
  /// if a document is too long, data_changed if a file changed while it was read, and what throw_if_stopped() throws.
  bool next(TextDocument& document);

 private:
  bool open_next_file();
  // The next document of the current file. They return false at its end.
  bool whole_file(TextDocument& document);
  bool next_line(TextDocument& document);
  /// Appends the next line, without its end. Returns false at the end of the file.
  bool read_line(std::string& line);
  /// The unused bytes of the buffer, which is refilled if there are none. Empty at the end of the file.
  std::string_view buffered();

  SourceFormat format_;
  std::uint64_t max_line_bytes_;
  std::vector<std::string> paths_;
  std::string description_;
  std::uint64_t total_bytes_ = 0, done_bytes_ = 0;  // of all files
  std::size_t next_path_ = 0;

  // The current file
  std::unique_ptr<InputFile> file_;
  std::shared_ptr<const std::string> path_;
  bool is_json_ = false;
  bool was_read_ = false;     // a text file
  std::uint64_t offset_ = 0;  // behind the buffer
  std::int64_t line_ = 0;
  std::string buffer_;
  std::size_t used_ = 0;  // bytes of the buffer
};

}  // namespace lockstep::data
