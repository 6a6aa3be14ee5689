// The files of a source of an import: a file, or a folder, such as a data set of the Hugging Face Hub (train and test
// in data/train-00000-of-00002.parquet, ...) or what `save_to_disk` of the library `datasets` wrote.
#pragma once

#include <string>
#include <vector>

#include "data/table.h"

namespace lockstep::data {

struct ListedFile {
  std::string path;
  TableFormat table = TableFormat::none;  // none: text, JSON Lines or an archive
  bool is_compressed = false, is_archive = false;
};

struct SourceFiles {
  std::vector<ListedFile> files;  // sorted by path
  std::string split;              // that was chosen; empty: there was no choice
};

/// The files of a source. Of a folder they have the formats of which it contains any, of the first group that is there:
/// Parquet; Arrow; *.txt and *.jsonl, also compressed; CSV and TSV; tar archives. Their split is that which the names
/// of the file and of its folders mention, as in `datasets`; "val" and "validation" are the same. With `split` empty,
/// all *.txt and *.jsonl are taken, and otherwise the only split or the one for training.
///
/// Throws data_source, with what is there, if there is no such split or no file, or if a folder has several data sets,
/// each in a folder of its own.
SourceFiles list_source(const std::string& source, const std::string& split);

/// Whether it is a table, or a folder with files of Parquet or Arrow.
bool contains_tables(const std::string& source);

/// The split of a file below its source; empty if its name has none.
std::string split_of(const std::string& relative_path);

}  // namespace lockstep::data
