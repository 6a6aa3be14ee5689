// Tables: files that consist of rows with named fields. Parquet and Arrow are read by a child process
// (arrow_process.h), CSV and TSV here. Another format is one more class derived from Table and one more line in
// format_of() and open_table().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_source.h"

namespace lockstep::data {

enum class TableFormat : std::uint8_t { none, parquet, arrow, comma_separated, tab_separated };

/// By the first bytes of the file (byte_source.h), or by its name without .gz and .zst.
TableFormat format_of(const std::string& path, std::string_view head);

struct TableColumn {
  std::string name;  // "image.bytes": a member of a struct
  std::string type;  // "string", "list", ...
};

struct TableDescription {
  std::vector<TableColumn> columns;
  std::string features;  // of Parquet and Arrow: the JSON that the library `datasets` recorded; empty: none

  /// "prompt (string), image.bytes (binary)"
  std::string list_of_columns() const;
};

/// A value of each requested field; no value: null. Texts and bytes are as they are, other values JSON.
using TableRow = std::vector<std::optional<std::string>>;

class Table {
 public:
  virtual ~Table() = default;
  virtual const TableDescription& description() const = 0;
  /// Whether the values of a field are texts or bytes.
  virtual bool is_plain(std::size_t field) const = 0;
  /// Returns false at the end. Throws data_source if the file is damaged or has a row of more than the maximum length,
  /// and what throw_if_stopped() throws.
  virtual bool next(TableRow& row) = 0;
  /// Where the last row is: its number from 0, or its line from 1.
  virtual std::int64_t number() const = 0;
  virtual std::uint64_t done_bytes() const = 0;  // of the file
};

struct TableRequest {
  std::vector<std::string> fields{};  // of columns, or members of structs; empty: one object of JSON with all columns
  const char* option = "--field";     // that names another field
  std::uint64_t max_row_bytes = std::uint64_t{1} << 30;
};

/// Memory is needed for a few rows only. Throws data_source if there is no such field, with those that there are.
std::unique_ptr<Table> open_table(const std::string& path, TableFormat format, const TableRequest& request);

}  // namespace lockstep::data
