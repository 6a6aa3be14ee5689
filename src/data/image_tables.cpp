#include "data/image_tables.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr std::int32_t kMaxClasses = 1 << 20;

/// The features that `datasets` recorded, by column; empty if there are none.
nlohmann::json features_of(const TableDescription& description) {
  const auto json = nlohmann::json::parse(description.features, nullptr, false);
  const auto at = nlohmann::json::json_pointer("/info/features");
  return json.is_object() && json.contains(at) && json.at(at).is_object() ? json.at(at) : nlohmann::json::object();
}

bool has_column(const TableDescription& description, const std::string& name) {
  return std::ranges::any_of(description.columns, [&](const TableColumn& column) { return column.name == name; });
}

/// The columns whose feature has this type, otherwise those with one of the names.
std::vector<std::string> columns_like(const TableDescription& description, const char* type,
                                      const std::vector<std::string>& names) {
  std::vector<std::string> out;
  const nlohmann::json features = features_of(description);
  for (const auto& [name, feature] : features.items())
    if (feature.is_object() && feature.value("_type", nlohmann::json()) == type) out.push_back(name);
  for (const std::string& name : out.empty() ? names : std::vector<std::string>{})
    if (has_column(description, name) || has_column(description, name + ".bytes")) out.push_back(name);
  return out;
}

std::string choose(const std::string& path, const TableDescription& description, const std::string& given,
                   const char* type, const std::vector<std::string>& names, const char* what, const char* option) {
  const std::vector<std::string> found = given.empty() ? columns_like(description, type, names) : std::vector{given};
  require(found.size() == 1, ErrorCode::data_source, "{} has {} column of {}; it has {}: choose one with {}", path,
          found.empty() ? "no" : "more than one", what, description.list_of_columns(), option);
  return found.front();
}

/// The names of a ClassLabel; empty: none are known.
std::vector<std::string> class_names(const TableDescription& description, const std::string& column) {
  const nlohmann::json features = features_of(description);
  const auto feature = features.find(column);
  if (feature == features.end() || !feature->is_object() || !feature->contains("names")) return {};
  try {
    return feature->at("names").get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

/// A label that is a number.
std::int32_t number_of(const std::string& cell, const SourceFile& row, std::int32_t n_classes) {
  std::int32_t label = -1;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), label);
  require(error == std::errc() && end == cell.data() + cell.size() && label >= 0 && label < n_classes,
          ErrorCode::data_source,
          "{} has the label {}, but expected a number from 0 to {}: this split may have no labels; choose another one "
          "with --split, or another column with --label",
          row.path, cell.substr(0, 40), n_classes - 1);
  return label;
}

}  // namespace

TableImages list_table_images(const ImageFolderOptions& options) {
  TableImages out{.tables = list_source(options.source, options.split), .column = {}, .classes = {}, .rows = {}};
  const ListedFile& first = out.tables.files.front();
  require(first.table == TableFormat::parquet || first.table == TableFormat::arrow, ErrorCode::data_source,
          "{} has no images: expected Parquet or Arrow files, or a folder with one folder of images per class",
          options.source);
  const TableDescription description = open_table(first.path, first.table, {})->description();
  out.column = choose(first.path, description, options.field, "Image", {"image", "img"}, "images", "--field");
  if (has_column(description, out.column + ".bytes")) out.column += ".bytes";
  const std::string label =
      choose(first.path, description, options.label_field, "ClassLabel", {"label", "labels"}, "labels", "--label");
  out.classes = class_names(description, label);
  const bool has_names = !out.classes.empty();

  std::map<std::string, std::int32_t> texts;
  std::vector<std::string> text_of_row;
  for (const ListedFile& listed : out.tables.files) {
    const auto table = open_table(listed.path, listed.table, {.fields = {label}, .option = "--label"});
    for (TableRow cells; table->next(cells);) {
      SourceFile row{.path = fmt::format("{}, row {}", listed.path, table->number()),
                     .row = static_cast<std::int64_t>(out.rows.size())};
      require(cells[0].has_value(), ErrorCode::data_source, "{} has no label: choose another split with --split",
              row.path);
      if (table->is_plain(0)) {
        texts.emplace(*cells[0], 0);
        text_of_row.push_back(*cells[0]);
      } else {
        row.label = number_of(*cells[0], row, has_names ? static_cast<std::int32_t>(out.classes.size()) : kMaxClasses);
      }
      out.rows.push_back(std::move(row));
    }
  }
  for (auto& [text, number] : texts) {
    number = static_cast<std::int32_t>(out.classes.size());
    out.classes.push_back(text);
  }
  for (std::size_t k = 0; k < text_of_row.size(); ++k) out.rows[k].label = texts.at(text_of_row[k]);
  for (const SourceFile& row : out.rows)
    while (!has_names && texts.empty() && row.label >= static_cast<std::int32_t>(out.classes.size()))
      out.classes.push_back(std::to_string(out.classes.size()));
  return out;
}

std::string TableImageReader::read(const SourceFile& file) {
  while (file.row >= 0) {
    if (!table_) {
      const std::vector<ListedFile>& files = images_->tables.files;
      require(next_table_ < files.size(), ErrorCode::data_changed, "{} changed during the import", files.back().path);
      const ListedFile& listed = files[next_table_++];
      table_ = open_table(listed.path, listed.table, {.fields = {images_->column}});
      require(table_->is_plain(0), ErrorCode::data_source,
              "{}: the column \"{}\" has no bytes; it has {}: choose one with --field", listed.path, images_->column,
              table_->description().list_of_columns());
    }
    if (!table_->next(cells_)) {
      table_.reset();
    } else if (next_row_++ == file.row) {
      return std::move(cells_[0]).value_or("");
    }
  }
  return "";
}

}  // namespace lockstep::data
