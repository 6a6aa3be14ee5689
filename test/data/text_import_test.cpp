// The import of text: documents from text files, JSON Lines and folders, in order, whatever the number of threads.
#include "data/text_import.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <random>

#include "test/data/text_files.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

/// Ids are the bytes of the text; 256 is the end token. Some documents take longer than others, so that threads finish
/// out of order.
TextEncoder byte_encoder() {
  return {.encode =
              [](std::string_view text, Ids& ids) {
                if (text.size() % 7 == 3) std::this_thread::sleep_for(std::chrono::microseconds(200));
                for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
              },
          .vocabulary_size = 257,
          .end_token = 256,
          .hash = "a hash",
          .path = "",
          .json = "{}"};
}

/// The documents of a set as text, without the end token.
std::vector<std::string> documents_of(const std::string& path) {
  const InputFile file(path);
  const TextFile layout = open_text_file(file);
  EXPECT_TRUE(verify_text_file(file, layout, {}).is_valid());
  std::vector<std::uint16_t> tokens(static_cast<std::size_t>(layout.n_tokens));
  file.read(layout.tokens.offset, std::as_writable_bytes(std::span(tokens)), "tokens");
  const auto positions = read_documents(file, layout, 0, layout.n_documents + 1);
  std::vector<std::string> out;
  for (std::size_t i = 0; i + 1 < positions.size(); ++i) {
    EXPECT_EQ(tokens[positions[i + 1] - 1], 256);
    out.emplace_back();
    for (std::uint64_t t = positions[i]; t + 1 < positions[i + 1]; ++t) out.back() += static_cast<char>(tokens[t]);
  }
  return out;
}

class TextImport : public ::testing::Test {
 protected:
  TextImportResult run_import(const std::vector<std::string>& names, TextImportOptions options = {},
                              const TextEncoder& encoder = byte_encoder(), const ImportProgress& progress = {}) {
    for (const std::string& name : names) options.sources.push_back(folder / name);
    options.output = output;
    options.replace = true;
    return import_text(options, encoder, progress);
  }
  void refuses(ErrorCode code, const std::string& part, const std::vector<std::string>& names,
               const TextImportOptions& options = {}) {
    EXPECT_ERROR(code, part, run_import(names, options));
    EXPECT_FALSE(fs::exists(output));
    EXPECT_EQ(n_files(), n_files_before) << "nothing is left";
  }
  void write(const std::string& name, const std::string& content) {
    fs::create_directories(fs::path(folder / name).parent_path());
    write_all(folder / name, content);
    n_files_before = n_files();
  }
  std::size_t n_files() const {
    std::size_t n = 0;
    for ([[maybe_unused]] const auto& entry : fs::recursive_directory_iterator(folder.path())) ++n;
    return n;
  }

  TemporaryFolder folder;
  std::string output = folder / "out.h5";
  std::size_t n_files_before = 0;
};

TEST_F(TextImport, ATextFileIsOneDocument) {
  write("a.txt", "First line\nsecond\r\n\n");
  const TextImportResult result = run_import({"a.txt"});
  EXPECT_EQ(documents_of(output), (std::vector<std::string>{"First line\nsecond\r\n\n"}));
  EXPECT_EQ(result.n_documents, 1);
  EXPECT_EQ(result.n_tokens, 21);
  EXPECT_EQ(result.text_bytes, 20u);
  EXPECT_EQ(result.size_bytes, fs::file_size(output));
  const TextFile layout = open_text_file(InputFile(output));
  EXPECT_EQ(layout.description.source, "a.txt");
  EXPECT_EQ(layout.description.tokenizer_hash, "a hash");
  EXPECT_EQ(layout.description.vocabulary_size, 257);
  EXPECT_EQ(layout.description.end_token, 256);
  EXPECT_EQ(read_tokenizer(InputFile(output), layout), "{}");
}

TEST_F(TextImport, EachLineOfJsonIsADocument) {
  write("a.jsonl",
        "\xef\xbb\xbf{\"text\": \"one\"}\n"
        "  \r\n"
        "{\"meta\": {\"text\": \"no\", \"x\": [1, {\"text\": 2}]}, \"text\": \"t\\u00e9\\n\", \"after\": null}\r\n"
        "{\"text\": \"\"}\n"
        "{\"text\": \"no end of line\"}");
  run_import({"a.jsonl"});
  EXPECT_EQ(documents_of(output), (std::vector<std::string>{"one", "t\xc3\xa9\n", "", "no end of line"}));
  write("b.jsonl", "{\"text\": 1, \"body\": \"B\"}\n");
  run_import({"b.jsonl"}, {.field = "body"});
  EXPECT_EQ(documents_of(output), (std::vector<std::string>{"B"}));
}

TEST_F(TextImport, FoldersAndSeveralSourcesFollowEachOtherInOrder) {
  write("many/b.txt", "b");
  write("many/a.jsonl", "{\"text\": \"a1\"}\n{\"text\": \"a2\"}\n");
  write("many/deep/c.txt", "c");
  write("many/README.md", "not text");
  write("z.txt", "z");
  write("script", "a text file of any name");
  const TextImportResult result = run_import({"z.txt", "many/", "script"});
  EXPECT_EQ(documents_of(output), (std::vector<std::string>{"z", "a1", "a2", "b", "c", "a text file of any name"}));
  EXPECT_EQ(result.n_files, 5u);
  EXPECT_EQ(open_text_file(InputFile(output)).description.source, "z.txt, many, script");
  run_import({"z.txt", "z.txt", "z.txt", "z.txt", "z.txt", "z.txt", "z.txt"});
  EXPECT_EQ(open_text_file(InputFile(output)).description.source, "z.txt, z.txt, z.txt, z.txt, z.txt and 2 more");
}

// 20,000 documents make many batches, and one document is larger than a batch and than the line buffer.
TEST_F(TextImport, TheBytesDoNotDependOnTheThreads) {
  std::mt19937 random(1);
  std::vector<std::string> expected;
  std::string lines;
  for (int i = 0; i < 20000; ++i) {
    std::string text(i == 7000 ? 3'000'000 : random() % 100, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 26);
    lines += "{\"text\": \"" + text + "\"}\n";
    expected.push_back(text);
  }
  write("a.jsonl", lines);
  std::int64_t last_done = 0, last_total = 0;
  run_import({"a.jsonl"}, {.threads = 4}, byte_encoder(), [&](std::int64_t done, std::int64_t total) {
    EXPECT_GT(done, last_done);
    last_done = done;
    last_total = total;
  });
  EXPECT_EQ(last_done, static_cast<std::int64_t>(lines.size()));
  EXPECT_EQ(last_total, last_done);
  EXPECT_TRUE(documents_of(output) == expected);
  const std::string bytes = read_all(output);
  run_import({"a.jsonl"}, {.threads = 1});
  EXPECT_TRUE(read_all(output) == bytes);
}

TEST_F(TextImport, ARangeOfDocumentsCountsOverAllSources) {
  write("a.jsonl", "{\"text\": \"0\"}\n{\"text\": \"1\"}\n");
  write("b.jsonl", "{\"text\": \"2\"}\n\n{\"text\": \"3\"}\nnot JSON, and not read\n");
  run_import({"a.jsonl", "b.jsonl"}, {.start = 1, .end = 4});
  EXPECT_EQ(documents_of(output), (std::vector<std::string>{"1", "2", "3"}));
  EXPECT_EQ(open_text_file(InputFile(output)).description.source, "a.jsonl, b.jsonl; documents 1 to 3");
  run_import({"a.jsonl"}, {.start = 1});
  EXPECT_EQ(documents_of(output), (std::vector<std::string>{"1"}));
  fs::remove(output);
  refuses(ErrorCode::data_range, "--start 0 --end 3 is not a range of the 2 documents of", {"a.jsonl"}, {.end = 3});
  refuses(ErrorCode::data_range, "--start 2 is not a range of the 2 documents of", {"a.jsonl"}, {.start = 2});
  refuses(ErrorCode::data_range, "must be before the end", {"a.jsonl"}, {.start = 2, .end = 2});
}

TEST_F(TextImport, WithoutAnEndTokenDocumentsFollowEachOtherAndEmptyOnesAreLeftOut) {
  write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"\"}\n{\"text\": \"c\"}\n");
  TextEncoder encoder = byte_encoder();
  encoder.end_token.reset();
  const TextImportResult result = run_import({"a.jsonl"}, {}, encoder);
  EXPECT_EQ(result.n_documents, 2);
  EXPECT_EQ(result.n_empty, 1);
  EXPECT_EQ(result.n_tokens, 3);
  const InputFile file(output);
  EXPECT_EQ(read_documents(file, open_text_file(file), 0, 3), (std::vector<std::uint64_t>{0, 2, 3}));
  fs::remove(output);
  write("empty.jsonl", "{\"text\": \"\"}\n");
  EXPECT_ERROR(ErrorCode::data_source, "there is no document with text", run_import({"empty.jsonl"}, {}, encoder));
}

TEST_F(TextImport, WrongLinesAreNamed) {
  const auto refuses_line = [&](const std::string& line, const std::string& part) {
    write("a.jsonl", "{\"text\": \"good\"}\n\n" + line + "\n{\"text\": 5}\n");
    refuses(ErrorCode::data_source, "a.jsonl:3: " + part, {"a.jsonl"});
  };
  refuses_line("{\"text\": \"a\"", "this line is not valid JSON (column 13:");
  refuses_line("text", "this line is not valid JSON (column 2:");
  refuses_line("{\"text\": \"\xff\"}", "this line is not valid JSON (column 11:");
  refuses_line("{\"text\": \"a\"} {\"text\": \"b\"}", "this line is not valid JSON (column 15:");
  refuses_line("{\"text\": \"a\", \"x\": {\"text\": \"c\"}, \"text\": \"b\"}",
               "the object has the field \"text\" 2 times");
  refuses_line(std::string("{\"text\": \"a\"}\0{", 15), "this line is not valid JSON: its byte 13 is 0");
  refuses_line("[\"text\"]", "this line is not an object");
  refuses_line("{\"Text\": \"a\"}", "the object has no field \"text\"; --field names");
  refuses_line("{\"x\": {\"text\": \"a\"}}", "the object has no field \"text\"");
  refuses_line("{\"text\": null}", "the field \"text\": expected a string, found a JSON null");
  refuses_line("{\"text\": [\"a\"]}", "the field \"text\": expected a string, found a JSON array");
  refuses_line(std::string(200000, '['), "this line is not valid JSON");
}

// The first wrong line is reported, whichever thread finds its error first.
TEST_F(TextImport, TheFirstErrorIsReported) {
  std::string lines;
  for (int i = 1; i <= 30000; ++i)
    lines += i == 12345 || i > 20000 ? "{\"text\": 1}\n" : "{\"text\": \"a document of some bytes\"}\n";
  write("a.jsonl", lines);
  refuses(ErrorCode::data_source, "a.jsonl:12345: ", {"a.jsonl"}, {.threads = 4});
}

TEST_F(TextImport, SourcesThatAreNoTextAreRefused) {
  write("empty/README.md", "");
  write("empty.jsonl", "\n \n");
  write("array.json", "[]");
  write("zero.txt", std::string("ab\0c", 4));
  write("a.txt", "a");
  refuses(ErrorCode::data_source, "nowhere.txt", {"a.txt", "nowhere.txt"});
  refuses(ErrorCode::data_source, "contains no files of text (*.txt, *.jsonl, *.csv", {"empty"});
  refuses(ErrorCode::data_source, "empty.jsonl contains no documents", {"empty.jsonl"});
  refuses(ErrorCode::data_source, "array.json has the name of one JSON value; expected", {"array.json"});
  refuses(ErrorCode::data_source, "zero.txt is not text, since byte 2 is 0", {"a.txt", "zero.txt"});
  fs::resize_file(folder / "a.txt", kMaxDocumentBytes + 1);
  refuses(ErrorCode::data_source, "has 1073741825 bytes; a text file is one document", {"a.txt"});
}

TEST_F(TextImport, NeitherSourceNorTokenizerIsReplaced) {
  write("out.h5", "a source with the name of the output");
  EXPECT_ERROR(ErrorCode::usage, "is an input of this command", run_import({"out.h5"}));
  write("a.txt", "a");
  TextEncoder encoder = byte_encoder();
  encoder.path = output;
  EXPECT_ERROR(ErrorCode::usage, "is an input of this command", run_import({"a.txt"}, {}, encoder));
  EXPECT_EQ(read_all(output), "a source with the name of the output");
  EXPECT_EQ(n_files(), n_files_before);
}

TEST_F(TextImport, AnExceptionOfTheProgressOrTheEncoderEndsItAndLeavesNothing) {
  write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
  struct Stopped {};
  EXPECT_THROW(run_import({"a.jsonl"}, {}, byte_encoder(), [](std::int64_t, std::int64_t) { throw Stopped{}; }),
               Stopped);
  TextEncoder encoder = byte_encoder();
  encoder.encode = [](std::string_view, Ids&) { throw Stopped{}; };
  EXPECT_THROW(run_import({"a.jsonl"}, {}, encoder), Stopped);
  EXPECT_EQ(n_files(), n_files_before);
}

}  // namespace
}  // namespace lockstep::data
