#include "data/table.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "data/arrow_process.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr std::uint32_t kNull = 0xffffffff;  // src/arrow/main.cpp
constexpr std::size_t kMaxColumns = 30;      // that messages list

[[noreturn]] void fail_missing(const std::string& path, const std::string& field, const TableDescription& description,
                               const TableRequest& request, const char* more = "") {
  fail(ErrorCode::data_source, "{} has no column \"{}\", but {}: choose one with {}{}", path, field,
       description.list_of_columns(), request.option, more);
}

// ---- Parquet and Arrow ----------------------------------------------------------------------------------------------

const char* name_of(TableFormat format) { return format == TableFormat::parquet ? "a Parquet file" : "an Arrow file"; }

class ArrowTable final : public Table {
 public:
  ArrowTable(const std::string& path, TableFormat format, const TableRequest& request)
      : path_(path),
        n_cells_(std::max<std::size_t>(1, request.fields.size())),
        process_(path, name_of(format), arguments(request), request.max_row_bytes) {
    std::string_view message;
    require(process_.next('C', message), ErrorCode::data_source, "{} has no columns", path);
    try {
      const auto json = nlohmann::json::parse(message);
      for (const auto& column : json.at("columns"))
        description_.columns.push_back({column.at("name").get<std::string>(), column.at("type").get<std::string>()});
      description_.features = json.at("features").get<std::string>();
      kinds_ = json.at("fields").get<std::vector<std::string>>();
    } catch (const nlohmann::json::exception&) {
      fail(ErrorCode::data_source, "{} cannot be read as {}: the names of its columns are not UTF-8", path,
           name_of(format));
    }
    for (std::size_t k = 0; k < kinds_.size(); ++k)
      if (kinds_[k].empty()) fail_missing(path, request.fields[k], description_, request);
  }

  const TableDescription& description() const override { return description_; }
  bool is_plain(std::size_t field) const override { return field < kinds_.size() && kinds_[field] != "json"; }
  std::int64_t number() const override { return number_; }
  std::uint64_t done_bytes() const override { return process_.done_bytes(); }

  bool next(TableRow& row) override {
    std::string_view cells;
    if (!process_.next('R', cells)) return false;
    ++number_;
    row.resize(n_cells_);
    for (auto& cell : row) {
      std::uint32_t n_bytes = 0;
      require(cells.size() >= sizeof n_bytes, ErrorCode::data_source, "{}: row {} cannot be read", path_, number_);
      std::memcpy(&n_bytes, cells.data(), sizeof n_bytes);
      cells.remove_prefix(sizeof n_bytes);
      cell.reset();
      if (n_bytes == kNull) continue;
      require(n_bytes <= cells.size(), ErrorCode::data_source, "{}: row {} cannot be read", path_, number_);
      cell.emplace(cells.substr(0, n_bytes));
      cells.remove_prefix(n_bytes);
    }
    return true;
  }

 private:
  static std::vector<std::string> arguments(const TableRequest& request) {
    std::vector<std::string> out{"rows"};
    out.insert(out.end(), request.fields.begin(), request.fields.end());
    return out;
  }

  std::string path_;
  std::size_t n_cells_;
  ArrowProcess process_;
  TableDescription description_;
  std::vector<std::string> kinds_;
  std::int64_t number_ = -1;
};

// ---- CSV ------------------------------------------------------------------------------------------------------------

/// RFC 4180: the first record has the names; a value in quotes may contain delimiters, ends of lines, and quotes, which
/// are doubled.
class SeparatedTable final : public Table {
 public:
  SeparatedTable(const std::string& path, char delimiter, const TableRequest& request)
      : delimiter_(delimiter), max_bytes_(request.max_row_bytes), source_(path) {
    std::vector<std::string> names;
    require(read_record(names), ErrorCode::data_source, "{} is empty: its first line must name its columns", path);
    for (const std::string& name : names) description_.columns.push_back({valid_utf8(name), ""});
    for (const std::string& field : request.fields) {
      const auto found = std::ranges::find(names, field);
      if (found == names.end())
        fail_missing(path, field, description_, request,
                     ", or, if its first line does not name the columns, insert one that does");
      wanted_.push_back(static_cast<std::size_t>(found - names.begin()));
    }
  }

  const TableDescription& description() const override { return description_; }
  bool is_plain(std::size_t) const override { return !wanted_.empty(); }
  std::int64_t number() const override { return first_line_; }
  std::uint64_t done_bytes() const override { return source_.done_bytes(); }

  bool next(TableRow& row) override {
    if (!read_record(values_)) return false;
    const std::vector<TableColumn>& columns = description_.columns;
    require(values_.size() == columns.size(), ErrorCode::data_source,
            "{}:{}: this line has {} values, but the first line names {} columns: put values that contain the "
            "delimiter or the end of a line into quotes",
            source_.file().path(), first_line_, values_.size(), columns.size());
    row.clear();
    for (const std::size_t k : wanted_) row.emplace_back(std::move(values_[k]));
    if (!wanted_.empty()) return true;
    nlohmann::ordered_json object;
    for (std::size_t k = 0; k < columns.size(); ++k) object[columns[k].name] = valid_utf8(values_[k]);
    row.emplace_back(object.dump());
    return true;
  }

 private:
  /// The values of the next record; blank lines are none. Returns false at the end.
  bool read_record(std::vector<std::string>& values) {
    do {
      line_.clear();
      if (!read_line()) return false;
      if (first_line_ == 0 && line_.starts_with("\xef\xbb\xbf")) line_.erase(0, 3);
      first_line_ = n_lines_;
    } while (without_end(line_).empty());
    values.clear();
    for (std::size_t at = 0;;) {
      std::string& value = values.emplace_back();
      if (line_[at] == '"') at = quoted(at + 1, value);
      const std::string_view rest = without_end(line_).substr(std::min(at, without_end(line_).size()));
      const std::size_t n = std::min(rest.find(delimiter_), rest.size());
      value += rest.substr(0, n);
      if (n == rest.size()) return true;
      at += n + 1;
    }
  }
  /// Appends what is in quotes, and returns the position behind it.
  std::size_t quoted(std::size_t at, std::string& value) {
    while (true) {
      const std::size_t quote = line_.find('"', at);
      if (quote == std::string::npos) {
        value.append(line_, at);
        at = line_.size();
        require(read_line(), ErrorCode::data_source, "{}:{}: a quote is not closed: double the quotes inside values",
                source_.file().path(), first_line_);
        continue;
      }
      value.append(line_, at, quote - at);
      if (quote + 1 >= line_.size() || line_[quote + 1] != '"') return quote + 1;
      value += '"';
      at = quote + 2;
    }
  }
  bool read_line() {
    if (!source_.read_line(line_, max_bytes_, n_lines_ + 1)) return false;
    ++n_lines_;
    return true;
  }
  static std::string_view without_end(std::string_view line) {
    if (line.ends_with('\n')) line.remove_suffix(1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  }

  char delimiter_;
  std::uint64_t max_bytes_;
  ByteSource source_;
  TableDescription description_;
  std::vector<std::size_t> wanted_;  // columns
  std::string line_;                 // the lines of a record
  std::vector<std::string> values_;
  std::int64_t n_lines_ = 0, first_line_ = 0;
};

}  // namespace

std::string TableDescription::list_of_columns() const {
  std::vector<std::string> out;
  for (const auto& [name, type] : columns) {
    out.push_back(type.empty() ? fmt::format("\"{}\"", name) : fmt::format("\"{}\" ({})", name, type));
    if (out.size() == kMaxColumns && columns.size() > kMaxColumns) {
      out.push_back(fmt::format("{} more", columns.size() - kMaxColumns));
      break;
    }
  }
  return out.empty() ? "no column" : fmt::format("{}", fmt::join(out, ", "));
}

TableFormat format_of(const std::string& path, std::string_view head) {
  if (head.starts_with("PAR1")) return TableFormat::parquet;
  if (head.starts_with("ARROW1")) return TableFormat::arrow;
  std::filesystem::path name(path);
  if (name.extension() == ".parquet") return TableFormat::parquet;
  if (name.extension() == ".arrow") return TableFormat::arrow;
  if (name.extension() == ".gz" || name.extension() == ".zst") name = name.stem();
  if (name.extension() == ".csv") return TableFormat::comma_separated;
  return name.extension() == ".tsv" ? TableFormat::tab_separated : TableFormat::none;
}

std::unique_ptr<Table> open_table(const std::string& path, TableFormat format, const TableRequest& request) {
  if (format == TableFormat::parquet || format == TableFormat::arrow)
    return std::make_unique<ArrowTable>(path, format, request);
  return std::make_unique<SeparatedTable>(path, format == TableFormat::comma_separated ? ',' : '\t', request);
}

}  // namespace lockstep::data
