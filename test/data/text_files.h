// Helpers for the tests of text sets: small sets with known tokens, and the fields of a window.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/text_file.h"
#include "data/text_set.h"
#include "test/data/files.h"

namespace lockstep::data {

using Ids = std::vector<std::int32_t>;

inline constexpr char kTestTokenizer[] = R"({"model": {"type": "none"}})";

struct TestText {
  std::vector<Ids> documents = {{1, 2, 3, 0}, {4, 0}, {5, 6, 7, 8, 9, 0}, {0}, {10, 11, 0}};  // 16 tokens
  int vocabulary_size = 12;
  std::optional<std::int32_t> end_token = 0;
};

/// A text set as import writes it.
inline void write_test_text(const std::string& path, const TestText& text = {}) {
  TextFileWriter writer(path, true, text.vocabulary_size);
  for (const Ids& document : text.documents) {
    writer.append(document);
    writer.end_document();
  }
  writer.finish({.vocabulary_size = text.vocabulary_size,
                 .tokenizer_hash = "0123456789abcdef",
                 .end_token = text.end_token,
                 .source = "test"},
                kTestTokenizer);
}

/// A window. Every field is filled with something else before the window is read.
struct ReadWindow {
  Ids tokens, targets, document_start, positions;

  ReadWindow(const TextSet& set, std::int64_t sample) {
    const auto length = static_cast<std::size_t>(set.info().sequence_length);
    std::vector<std::span<std::byte>> fields;
    for (Ids* field : {&tokens, &targets, &document_start, &positions}) {
      field->assign(length, -99);
      fields.push_back(std::as_writable_bytes(std::span(*field)));
    }
    set.read(sample, 0, fields);
  }
};

}  // namespace lockstep::data
