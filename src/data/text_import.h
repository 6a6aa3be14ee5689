// Imports text: documents from text files, JSON Lines and tables are tokenised by several threads and written as a text
// set (text_file.h), in the order of the sources. Memory is bounded, whatever the number of documents.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/signals.h"
#include "data/archive.h"
#include "data/byte_source.h"
#include "data/import.h"
#include "data/source_files.h"
#include "data/table.h"
#include "data/text_file.h"
#include "lockstep/error.h"

namespace lockstep::data {

// ---- Sources --------------------------------------------------------------------------------------------------------

/// A document is held in memory with its ids.
inline constexpr std::uint64_t kMaxDocumentBytes = std::uint64_t{1} << 30;

struct TextDocument {
  std::string text;                         // of the document, or the JSON that contains it
  bool is_json = false;                     // a line of JSON, or a row of a table as JSON
  std::shared_ptr<const std::string> path;  // of its file
  std::int64_t line = 0;                    // from 1; of Parquet and Arrow: the row from 0
  bool is_row = false;                      // of Parquet or Arrow

  /// "FILE:12", or "FILE, row 11"
  std::string place() const { return fmt::format(fmt::runtime(is_row ? "{}, row {}" : "{}:{}"), *path, line); }
};

/// What decides how a file that is no table is read: its name, which ends in .jsonl for JSON Lines; or every file is
/// JSON Lines.
enum class SourceFormat : std::uint8_t { by_name, json_lines };

struct TextSourceOptions {
  SourceFormat format = SourceFormat::by_name;
  std::string split{};  // source_files.h
  std::string field{};  // of tables: the text; empty: the whole row as JSON
  std::uint64_t max_line_bytes = kMaxDocumentBytes;
  std::string output{};  // in whose folder compressed archives are unpacked
};

/// Reads the documents of text files, JSON Lines, tables and archives one after the other. Those of an archive are its
/// members *.txt, or if there are none or the format is JSON Lines, *.json with one object each. It needs memory only
/// for the longest document.
class TextSource {
 public:
  /// Lists the files of `sources` (TextImportOptions::sources). Throws data_source if one of them is missing or, by
  /// name, has one that is neither that of text nor of JSON Lines.
  explicit TextSource(const std::vector<std::string>& sources, TextSourceOptions options = {});

  const std::vector<std::string>& paths() const { return paths_; }
  std::int64_t total_bytes() const { return static_cast<std::int64_t>(total_bytes_); }
  std::uint64_t done_bytes() const;
  /// The names of the sources: "shakespeare.txt", "a.jsonl, b.jsonl, c.jsonl, d.jsonl, e.jsonl and 3 more"; and the
  /// split, if there was a choice
  const std::string& description() const { return description_; }
  /// Rows whose text is null, which were skipped.
  std::int64_t n_null() const { return n_null_; }

  /// Returns false at the end. Blank lines in JSON Lines are not documents. Throws data_source if a file is not text or
  /// if a document is too long, data_changed if a file changed while it was read, and what throw_if_stopped() throws.
  bool next(TextDocument& document);

 private:
  bool open_next_file();
  void close_file();
  // The next document of the current file. They return false at its end.
  bool whole_file(TextDocument& document);
  bool next_line(TextDocument& document);
  bool next_row(TextDocument& document);
  bool next_member(TextDocument& document);

  TextSourceOptions options_;
  std::vector<ListedFile> files_;
  std::vector<std::string> paths_;
  std::string description_;
  std::uint64_t total_bytes_ = 0, done_bytes_ = 0;  // of all files, and of those before the current one
  std::size_t next_file_ = 0;
  std::int64_t n_null_ = 0;

  // The current file
  std::unique_ptr<InputFile> file_;
  std::unique_ptr<ByteSource> bytes_;
  std::unique_ptr<Table> table_;  // or `bytes_`
  TableRow row_;
  std::shared_ptr<const std::string> path_;
  bool is_json_ = false, is_row_ = false;
  bool was_read_ = false;  // a text file
  std::int64_t line_ = 0;
  std::unique_ptr<Scratch> scratch_;  // of `members_`
  std::vector<ArchiveMember> members_;
  std::size_t next_member_ = 0;
};

// ---- JSON, of which a line can have 1 GiB ---------------------------------------------------------------------------

/// Iterates over characters. Every 1 MiB, it throws what throw_if_stopped() throws.
class StoppableIterator {
 public:
  using difference_type = std::ptrdiff_t;
  using value_type = char;
  using pointer = const char*;
  using reference = const char&;
  using iterator_category = std::forward_iterator_tag;

  explicit StoppableIterator(const char* at) : at_(at) {}
  reference operator*() const { return *at_; }
  StoppableIterator& operator++() {
    if ((reinterpret_cast<std::uintptr_t>(++at_) & ((1u << 20) - 1)) == 0) throw_if_stopped();
    return *this;
  }
  bool operator==(const StoppableIterator&) const = default;

 private:
  const char* at_;
};

/// What parse() returns for a line of JSON. Throws data_source if it is not valid, with the place and what was
/// expected.
template <typename Parse>
auto parse_line(std::string_view line, const std::string& place, const char* expected, const Parse& parse) {
  const std::size_t zero = line.find('\0');  // where the parser would stop
  require(zero == std::string_view::npos, ErrorCode::data_source, "{}: this line is not valid JSON: its byte {} is 0",
          place, zero);
  try {
    return parse();
  } catch (const nlohmann::json::exception& error) {
    const std::string_view what = error.what();
    const std::size_t column = what.find("column ");
    fail(ErrorCode::data_source, "{}: this line is not valid JSON ({}); {}", place,
         column == std::string_view::npos ? what : what.substr(column), expected);
  }
}

/// Json::parse(text, callback...)
template <typename Json, typename... Callback>
Json parse_stoppable(std::string_view text, Callback&&... callback) {
  return Json::parse(StoppableIterator(text.data()), StoppableIterator(text.data() + text.size()),
                     std::forward<Callback>(callback)...);
}

/// The member with this name, or of one of its objects ("row.text"); null if there is none.
template <typename Json>
Json* find_field(Json& object, std::string_view name) {
  if (!object.is_object()) return nullptr;
  if (const auto found = object.find(std::string(name)); found != object.end()) return &*found;
  for (std::size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1))
    if (const auto outer = object.find(std::string(name.substr(0, dot))); outer != object.end())
      if (Json* found = find_field<Json>(*outer, name.substr(dot + 1))) return found;
  return nullptr;
}

// ---- The import -----------------------------------------------------------------------------------------------------

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
  /// Text files (one document each), JSON Lines (*.jsonl: one document per line), tables (one document per row), tar
  /// archives (one document per member), and folders of them (source_files.h).
  std::vector<std::string> sources{};
  std::string output{};
  std::string split{};                               // source_files.h
  std::string field = "text";                        // of a line of JSON, or a column
  std::int64_t start = 0;                            // the first document, over all sources
  std::int64_t end = 0;                              // the document after the last; 0: all
  bool replace = false;                              // replace an existing output
  std::uint64_t max_line_bytes = kMaxDocumentBytes;  // of JSON Lines
  int threads = 0;                                   // 0: as many as cores
};

struct TextImportResult {
  std::int64_t n_documents = 0, n_tokens = 0;
  std::int64_t n_empty = 0;      // documents without a token, and rows without a text, which were left out
  std::uint64_t text_bytes = 0;  // of the documents
  std::uint64_t size_bytes = 0;  // of the output
  std::size_t n_files = 0;
};

/// `progress` counts bytes of the sources. It is called between documents and may throw, which ends the import. Throws
/// data_source for sources that cannot be imported, with file and line.
TextImportResult import_text(const TextImportOptions& options, const TextEncoder& encoder,
                             const ImportProgress& progress = {});

}  // namespace lockstep::data
