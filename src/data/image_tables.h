// Images in the rows of tables, as the Hugging Face Hub stores data sets of images: one column has the bytes of JPEG or
// PNG files, another one the labels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/image_files.h"
#include "data/import.h"
#include "data/source_files.h"
#include "data/table.h"

namespace lockstep::data {

struct TableImages {
  SourceFiles tables;
  std::string column;  // of the bytes
  std::vector<std::string> classes;
  std::vector<SourceFile> rows;  // SourceFile::row counts over all tables
};

/// Reads the labels. Classes are those that the library `datasets` recorded in the file (ClassLabel), otherwise the
/// different texts, sorted, or the numbers from 0 to the greatest label. The columns are `options.field` and
/// `options.label_field`, or those that are images and labels by their type or name. Throws data_source if there is no
/// such column or a row has no label.
TableImages list_table_images(const ImageFolderOptions& options);

/// The bytes of rows, which must be asked for in ascending order.
class TableImageReader {
 public:
  explicit TableImageReader(std::shared_ptr<const TableImages> images) : images_(std::move(images)) {}
  /// A null image has no bytes, and neither has a file that is no row.
  std::string read(const SourceFile& file);

 private:
  std::shared_ptr<const TableImages> images_;  // null: there are only files
  std::size_t next_table_ = 0;
  std::unique_ptr<Table> table_;
  TableRow cells_;
  std::int64_t next_row_ = 0;
};

}  // namespace lockstep::data
