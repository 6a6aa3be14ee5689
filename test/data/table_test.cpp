// Tables: files that pyarrow and `datasets` wrote with different options have the samples that `datasets` reads from
// them (test/golden/make_table_golden.py); damaged and hostile files, and a child process that fails, end in a
// sentence.
#include "data/table.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "data/image_tables.h"
#include "data/source_files.h"
#include "data/text_import.h"
#include "test/data/files.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kFolder = "test/golden/tables/";

/// Whether the program that reads them was built: the libraries of Arrow may be missing.
bool has_arrow() {
  try {
    open_table(kFolder + "snappy.parquet", TableFormat::parquet, {});
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_supported) throw;
    return false;
  }
}
#define NEEDS_ARROW() \
  if (!has_arrow()) GTEST_SKIP() << "lockstep-arrow was not built"

std::vector<Json> rows_of(const std::string& source, const std::string& split) {
  TextSource texts({source}, {.format = SourceFormat::json_lines, .split = split});
  std::vector<Json> out;
  for (TextDocument row; texts.next(row);) out.push_back(Json::parse(row.text));
  EXPECT_EQ(texts.done_bytes(), static_cast<std::uint64_t>(texts.total_bytes())) << source;
  return out;
}

/// The columns of bytes in hexadecimal, without nulls.
std::vector<std::string> bytes_of(const std::string& source, const std::string& split) {
  std::vector<std::string> out;
  for (const ListedFile& file : list_source(source, split).files) {
    if (file.table == TableFormat::none) continue;
    TableRequest request;
    const auto all = open_table(file.path, file.table, {});
    for (const TableColumn& column : all->description().columns)
      if (column.type.ends_with("binary")) request.fields.push_back(column.name);
    if (request.fields.empty()) continue;
    const auto table = open_table(file.path, file.table, request);
    for (TableRow row; table->next(row);)
      for (const auto& cell : row)
        if (cell) {
          out.emplace_back();
          for (const unsigned char c : *cell) out.back() += fmt::format("{:02x}", c);
        }
  }
  return out;
}

TEST(Table, HasTheSamplesThatDatasetsReads) {
  NEEDS_ARROW();
  std::ifstream file(kFolder + "expected.json");
  const Json expected = Json::parse(file);
  EXPECT_GE(expected.size(), 25u);
  for (const auto& [source, splits] : expected.items())
    for (const auto& [split, samples] : splits.items()) {
      const auto rows = rows_of(kFolder + source, fs::is_directory(kFolder + source) ? split : "");
      EXPECT_EQ(rows.size(), samples["rows"].size()) << source << " " << split;
      for (std::size_t i = 0; i < rows.size() && i < samples["rows"].size(); ++i)
        EXPECT_EQ(rows[i], samples["rows"][i]) << source << " " << split << " " << i;
      EXPECT_EQ(Json(bytes_of(kFolder + source, split)), samples["bytes"]) << source << " " << split;
    }
}

TEST(Table, FieldsAreColumnsOrMembers) {
  NEEDS_ARROW();
  const auto first_row = [](const std::string& name, std::vector<std::string> fields) {
    TableRow row;
    EXPECT_TRUE(open_table(kFolder + name, TableFormat::parquet, {.fields = std::move(fields)})->next(row));
    return row;
  };
  EXPECT_EQ(first_row("dotted.parquet", {"a.b", "a.c", "a"}), (TableRow{"d0", "x", R"({"c":"x"})"}));
  EXPECT_EQ(first_row("hub.parquet", {"deep.c", "deep.a.b", "tags"}), (TableRow{"true", std::nullopt, "[]"}));
  EXPECT_EQ(first_row("types.parquet", {"bytes", "text", "double"}),
            (TableRow{std::string("\0\xff", 2), std::nullopt, "0.1"}));
  for (const char* name : {"deep.x", "deep.c.x", "messages.role", "DEEP", ""})
    EXPECT_ERROR(ErrorCode::data_source,
                 fmt::format("has no column \"{}\", but \"messages\" (list), \"deep.a.b\" (list), \"deep.c\" (bool), "
                             "\"tags\" (list): choose one with --field",
                             name),
                 first_row("hub.parquet", {name}));
}

TEST(Table, SplitsAreThoseOfNames) {
  for (const auto& [path, split] :
       std::map<std::string, std::string>{{"data/train-00000-of-00002.parquet", "train"},
                                          {"data/train_sft-00000-of-00002.parquet", "train_sft"},
                                          {"en/c4-validation.00001-of-00008.json.gz", "validation"},
                                          {"no_robots-test.arrow", "test"},
                                          {"val/1.csv", "validation"},
                                          {"train/eval-1.csv", "test"},
                                          {"trainer/contest.jsonl", ""},
                                          {"data-00000-of-0001.parquet", ""}})
    EXPECT_EQ(split_of(path), split) << path;
}

TEST(Table, ImagesHaveTheirLabels) {
  NEEDS_ARROW();
  ImageFolderOptions options;
  options.source = kFolder + "images";
  options.split = "val";
  const TableImages images = list_table_images(options);
  EXPECT_EQ(images.column, "image.bytes");
  EXPECT_EQ(images.classes, (std::vector<std::string>{"cat", "dog", "fox"}));
  ASSERT_EQ(images.rows.size(), 3u);
  EXPECT_EQ(images.rows[2].label, 2);
  TableImageReader reader(std::make_shared<TableImages>(images));
  EXPECT_EQ(reader.read(images.rows[1]).substr(0, 4), "\x89PNG");
  options.source = kFolder + "snapshot";
  options.split = "train";
  EXPECT_ERROR(ErrorCode::data_source, "has no column of images; it has \"id\" (int64), \"text\" (string): choose one",
               list_table_images(options));
  options.field = "text";
  EXPECT_ERROR(ErrorCode::data_source, "has no column of labels", list_table_images(options));
  options.label_field = "text";
  const TableImages texts = list_table_images(options);
  EXPECT_EQ(texts.classes.size(), 7u) << "the empty text is one";
  EXPECT_EQ(texts.classes[static_cast<std::size_t>(texts.rows[1].label)], "Zeile 1: naïve “Tee” 🍵\n");
  options.label_field = "id";
  EXPECT_EQ(list_table_images(options).classes.size(), 9u);
}

class BadTable : public testing::Test {
 protected:
  std::string put(const std::string& name, const std::string& content) {
    write_all(folder / name, content);
    return folder / name;
  }
  /// Reads everything. Returns what is wrong, in one sentence.
  static std::string problem(const std::string& path) {
    try {
      TextSource source({path}, {.format = SourceFormat::json_lines});
      for (TextDocument row; source.next(row);) continue;
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data_source) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      return error.what();
    }
  }
  TemporaryFolder folder;
};

TEST_F(BadTable, DamageEndsInASentence) {
  NEEDS_ARROW();
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random()) % n; };
  for (const char* name :
       {"hub.parquet", "groups_v2.parquet", "stream.arrow", "file.arrow", "lines.jsonl.gz", "lines.json.zst"}) {
    const std::string good = read_all(kFolder + name);
    EXPECT_EQ(problem(put(name, good)), "");
    EXPECT_NE(problem(put(name, good.substr(0, good.size() / 2))), "") << name;
    EXPECT_NE(problem(put(name, good.substr(0, good.size() - 9))), "") << name;
    for (int k = 0; k < n_flips() / 5; ++k) {
      std::string bad = good;
      for (std::size_t flips = 1 + below(3); flips > 0; --flips)
        bad[below(bad.size())] ^= static_cast<char>(1 << below(8));
      problem(put(name, bad));
    }
  }
}

TEST_F(BadTable, GiantSizesEndInASentence) {
  NEEDS_ARROW();
  const std::string parquet = read_all(kFolder + "snappy.parquet"), arrow = read_all(kFolder + "stream.arrow");
  std::string bad = parquet;
  bad.replace(bad.size() - 8, 4, "\xff\xff\xff\x7f");
  EXPECT_NE(problem(put("footer.parquet", bad)), "");
  bad = arrow;
  bad.replace(4, 4, "\xf0\xff\xff\x7f");
  EXPECT_NE(problem(put("metadata.arrow", bad)), "");
  EXPECT_NE(problem(put("empty.parquet", "")), "");
  EXPECT_NE(problem(put("text.parquet", "no table")), "");
}

/// A program in place of lockstep-arrow.
class FakeArrow : public BadTable {
 protected:
  void SetUp() override { ::setenv("LOCKSTEP_ARROW", (folder / "fake").c_str(), 1); }
  void TearDown() override { ::unsetenv("LOCKSTEP_ARROW"); }
  void write_script(const std::string& script) { ::chmod(put("fake", "#!/bin/sh\n" + script).c_str(), 0700); }
  std::string problem_of(const std::string& script) {
    write_script(script);
    return problem(put("a.parquet", "PAR1"));
  }
};

TEST_F(FakeArrow, ItsEndIsASentence) {
  EXPECT_NE(
      problem_of("kill -SEGV $$").find("a.parquet cannot be read as a Parquet file: the library crashed on it (Seg"),
      std::string::npos);
  EXPECT_NE(problem_of("kill -XCPU $$").find("did not finish"), std::string::npos);
  EXPECT_NE(problem_of("kill -KILL $$").find("most likely for lack of memory"), std::string::npos);
  EXPECT_NE(problem_of("exit 0").find("the process that read it ended"), std::string::npos);
  write_script("exit 127");
  EXPECT_ERROR(ErrorCode::not_supported, "`ldd ", open_table(put("a.parquet", "PAR1"), TableFormat::parquet, {}));
}

TEST_F(FakeArrow, ItsOutputIsNotTrusted) {
  const std::string columns = R"(printf 'C\056\000\000\000{"columns":[],"fields":["text"],"features":""}')"
                              "\n";
  EXPECT_NE(problem_of(R"(printf 'E\006\000\000\000a\nb\377cd')").find("Parquet file: a"), std::string::npos);
  EXPECT_NE(problem_of(R"(printf 'C\001\000\000\000x')").find("not UTF-8"), std::string::npos);
  EXPECT_NE(problem_of(columns + R"(printf 'R\005\000\000\000\002\000\000\000x')").find("row 0 cannot be read"),
            std::string::npos)
      << "a cell of two bytes, of which there is one";
  EXPECT_NE(problem_of(columns + R"(printf 'R\003\000\000\000abc')").find("row 0 cannot be read"), std::string::npos);
  EXPECT_NE(problem_of(columns + R"(printf 'R\376\377\377\377')").find("a row has more than"), std::string::npos);
}

TEST_F(BadTable, SeparatedValues) {
  TableRow row;
  const std::string path = put("a.csv", "\xef\xbb\xbf\"a\",b\r\n1,\xef\xbb\xbf\r\n");
  EXPECT_TRUE(open_table(path, TableFormat::comma_separated, {.fields = {"a", "b"}})->next(row));
  EXPECT_EQ(row, (TableRow{"1", "\xef\xbb\xbf"})) << "a byte order mark, and a character";
  EXPECT_NE(problem(put("a.csv", "")).find("a.csv is empty: its first line must name its columns"), std::string::npos);
  EXPECT_NE(
      problem(put("a.csv", "a,b\n1,2\n\n3\n")).find("a.csv:4: this line has 1 values, but the first line names 2"),
      std::string::npos);
  EXPECT_NE(problem(put("a.csv", "a\n\"x\ny\n")).find("a.csv:2: a quote is not closed"), std::string::npos);
  EXPECT_ERROR(ErrorCode::data_source,
               "a.csv has no column \"text\", but \"hello\", \"you\": choose one with --field, or, if",
               TextSource({put("a.csv", "hello,you\n")}, {.field = "text"}).next(*std::make_unique<TextDocument>()));
  EXPECT_ERROR(ErrorCode::data_source, "a.csv:4: this line has more than 5 bytes",
               TextSource({put("a.csv", "a\n\"x\nyz\n\"\n")}, {.field = "a", .max_line_bytes = 5})
                   .next(*std::make_unique<TextDocument>()));
}

TEST_F(BadTable, FoldersAreExplained) {
  NEEDS_ARROW();
  EXPECT_ERROR(ErrorCode::data_source, "snapshot has no split validation, but test (1 file), train (2 files): choose",
               list_source(kFolder + "snapshot", "val"));
  EXPECT_EQ(list_source(kFolder + "snapshot", "").split, "train");
  EXPECT_ERROR(ErrorCode::data_source, "saved_splits has no split test, but test_sft (1 file), train (1 file)",
               list_source(kFolder + "saved_splits", "test"));
  EXPECT_ERROR(ErrorCode::data_source, "has the split test by its name, not train",
               list_source(kFolder + "snapshot/data/test-00000-of-00001.parquet", "train"));
  for (const char* set : {"one", "two"}) {
    fs::create_directories(folder / set);
    fs::copy(kFolder + "snapshot/data/test-00000-of-00001.parquet", folder / set);
  }
  EXPECT_ERROR(ErrorCode::data_source,
               "contains several data sets that have a split test: give the folder of one of them",
               list_source(folder.path(), ""));
  EXPECT_EQ(list_source(folder / "one", "").files.size(), 1u);
  // A cache of `datasets` in a saved folder is none of its files.
  fs::copy(kFolder + "saved", folder / "saved");
  fs::copy(kFolder + "stream.arrow", folder / "saved/cache-1.arrow");
  EXPECT_EQ(list_source(folder / "saved", "").files.size(), 2u);
  put("saved/state.json", "{}");
  EXPECT_ERROR(ErrorCode::data_source, "expected the list \"_data_files\"", list_source(folder / "saved", ""));
}

}  // namespace
}  // namespace lockstep::data
