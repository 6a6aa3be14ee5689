// Windows of text sets, compared with windows written by hand, and with the definition in text_set.h.
#include "data/text_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>

#include "hdf5/writer.h"
#include "test/data/text_files.h"

namespace lockstep::data {
namespace {

std::unique_ptr<TextSet> open(const std::string& path, int sequence_length, bool pack = true, bool cross = false,
                              std::int64_t first = 0, std::int64_t end = 0) {
  return open_text_set(path, first, end, {.sequence_length = sequence_length, .pack = pack, .cross_documents = cross});
}

// The stream: 1 2 3 0 | 4 0 | 5 6 7 8 9 0 | 0 | 10 11 0
TEST(TextSet, PackedWindowsStopAtDocuments) {
  TemporaryFolder folder;
  write_test_text(folder / "set.h5");
  const auto set = open(folder / "set.h5", 5);
  EXPECT_EQ(set->info().n_samples, 3) << "the last token is left out";
  EXPECT_EQ(set->info().n_tokens, 16);
  EXPECT_EQ(set->info().n_documents, 5);
  EXPECT_EQ(set->info().vocabulary_size, 12);
  EXPECT_EQ(set->info().tokenizer_hash, "0123456789abcdef");
  EXPECT_EQ(set->info().end_token, 0);
  const ReadWindow first(*set, 0), second(*set, 1), third(*set, 2);
  EXPECT_EQ(first.tokens, (Ids{1, 2, 3, 0, 4}));
  EXPECT_EQ(first.targets, (Ids{2, 3, 0, -1, -1}));
  EXPECT_EQ(first.document_start, (Ids{0, 0, 0, 0, 4}));
  EXPECT_EQ(first.positions, (Ids{0, 1, 2, 3, 0}));
  EXPECT_EQ(second.tokens, (Ids{0, 5, 6, 7, 8}));
  EXPECT_EQ(second.targets, (Ids{-1, 6, 7, 8, -1}));
  EXPECT_EQ(second.document_start, (Ids{0, 1, 1, 1, 1}));
  EXPECT_EQ(second.positions, (Ids{0, 0, 1, 2, 3}));
  EXPECT_EQ(third.tokens, (Ids{9, 0, 0, 10, 11}));
  EXPECT_EQ(third.targets, (Ids{0, -1, -1, 11, -1}));
  EXPECT_EQ(third.document_start, (Ids{0, 0, 2, 3, 3}));
  EXPECT_EQ(third.positions, (Ids{0, 1, 0, 0, 1}));
}

TEST(TextSet, TheContentHashIsThatOfTokensAndDocuments) {
  TemporaryFolder folder;
  const auto hash_of = [&](const std::vector<Ids>& documents) {
    write_test_text(folder / "set.h5", {.documents = documents});
    return open(folder / "set.h5", 4)->info().content_hash;
  };
  const std::string hash = hash_of({{1, 2, 3, 0}, {4, 0}});
  EXPECT_EQ(hash.size(), 16u);
  EXPECT_EQ(hash_of({{1, 2, 3, 0}, {4, 0}}), hash);
  EXPECT_NE(hash_of({{1, 2, 3, 0}, {5, 0}}), hash);
  EXPECT_NE(hash_of({{1, 2, 3}, {0, 4, 0}}), hash);
}

TEST(TextSet, WindowsThatCrossDocumentsAreOnePieceOfText) {
  TemporaryFolder folder;
  write_test_text(folder / "set.h5");
  const auto set = open(folder / "set.h5", 8, true, true);
  EXPECT_EQ(set->info().n_samples, 2);
  const ReadWindow second(*set, 1);
  EXPECT_EQ(second.tokens, (Ids{7, 8, 9, 0, 0, 10, 11, 0}));
  EXPECT_EQ(second.targets, (Ids{8, 9, 0, 0, 10, 11, 0, -1}));
  EXPECT_EQ(second.document_start, Ids(8, 0));
  EXPECT_EQ(second.positions, (Ids{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(TextSet, WithoutPackingEachDocumentIsTruncatedOrPadded) {
  TemporaryFolder folder;
  write_test_text(folder / "set.h5");
  const auto set = open(folder / "set.h5", 4, false);
  EXPECT_EQ(set->info().n_samples, 4) << "the document of one token is left out";
  const ReadWindow exact(*set, 0), padded(*set, 1), cut(*set, 2), last(*set, 3);
  EXPECT_EQ(exact.tokens, (Ids{1, 2, 3, 0}));
  EXPECT_EQ(exact.targets, (Ids{2, 3, 0, -1}));
  EXPECT_EQ(padded.tokens, (Ids{4, 0, 0, 0}));
  EXPECT_EQ(padded.targets, (Ids{0, -1, -1, -1}));
  EXPECT_EQ(cut.tokens, (Ids{5, 6, 7, 8}));
  EXPECT_EQ(cut.targets, (Ids{6, 7, 8, -1}));
  EXPECT_EQ(last.tokens, (Ids{10, 11, 0, 0}));
  EXPECT_EQ(last.targets, (Ids{11, 0, -1, -1}));
  for (const ReadWindow* window : {&exact, &padded, &cut, &last}) {
    EXPECT_EQ(window->document_start, Ids(4, 0));
    EXPECT_EQ(window->positions, (Ids{0, 1, 2, 3}));
  }
}

TEST(TextSet, ARangeOfDocumentsIsASetOfItsOwn) {
  TemporaryFolder folder;
  write_test_text(folder / "set.h5");
  const auto packed = open(folder / "set.h5", 4, true, false, 1, 4);
  EXPECT_EQ(packed->info().first_document, 1);
  EXPECT_EQ(packed->info().n_documents, 3);
  EXPECT_EQ(packed->info().n_tokens, 9);
  EXPECT_EQ(packed->info().n_samples, 2);
  EXPECT_EQ(ReadWindow(*packed, 1).tokens, (Ids{7, 8, 9, 0}));
  const auto rows = open(folder / "set.h5", 3, false, false, 3, 0);
  ASSERT_EQ(rows->info().n_samples, 1);
  EXPECT_EQ(ReadWindow(*rows, 0).tokens, (Ids{10, 11, 0}));
  for (const auto& [first, end] : {std::pair{0, 6}, {5, 5}, {5, 0}, {3, 2}, {-1, 2}})
    EXPECT_ERROR(ErrorCode::data_range, "are not a range of the 5 documents",
                 open(folder / "set.h5", 2, true, false, first, end));
}

// Compares every window with the definition, for documents of random lengths and both widths of ids.
TEST(TextSet, RandomDocumentsGiveTheDefinedWindows) {
  TemporaryFolder folder;
  std::mt19937 random(7);
  for (const int vocabulary_size : {65536, 65537}) {
    TestText text{.documents = {}, .vocabulary_size = vocabulary_size, .end_token = {}};
    Ids stream, document_of;
    for (int d = 0; d < 200; ++d) {
      Ids document(1 + random() % 40 % (1 + random() % 40));
      for (std::int32_t& id : document) id = static_cast<std::int32_t>(random() % vocabulary_size);
      if (d == 100) document = {vocabulary_size - 1, 0};
      stream.insert(stream.end(), document.begin(), document.end());
      document_of.insert(document_of.end(), document.size(), d);
      text.documents.push_back(document);
    }
    write_test_text(folder / "set.h5", text);
    EXPECT_EQ(open_text_file(InputFile(folder / "set.h5")).token_bytes, vocabulary_size == 65536 ? 2 : 4);
    for (const std::size_t length : {2u, 7u, 64u}) {
      const auto set = open(folder / "set.h5", static_cast<int>(length));
      ASSERT_EQ(set->info().n_samples, static_cast<std::int64_t>(stream.size() / length));
      for (std::int64_t s = 0; s < set->info().n_samples; ++s) {
        const ReadWindow w(*set, s);
        const std::size_t begin = static_cast<std::size_t>(s) * length;
        for (std::size_t t = 0; t < length; ++t) {
          ASSERT_EQ(w.tokens[t], stream[begin + t]);
          const bool goes_on = t + 1 < length && document_of[begin + t + 1] == document_of[begin + t];
          ASSERT_EQ(w.targets[t], goes_on ? stream[begin + t + 1] : -1);
          const bool is_new = t == 0 || document_of[begin + t] != document_of[begin + t - 1];
          ASSERT_EQ(w.document_start[t], is_new ? static_cast<int>(t) : w.document_start[t - 1]);
          ASSERT_EQ(w.positions[t], static_cast<int>(t) - w.document_start[t]);
        }
      }
    }
  }
}

TEST(TextSet, FieldsOfAnIncompleteBatchPredictNothing) {
  TemporaryFolder folder;
  write_test_text(folder / "set.h5");
  const std::vector<Field> fields = open(folder / "set.h5", 6)->fields();
  ASSERT_EQ(fields.size(), 4u);
  const char* names[] = {kTokensField, kTargetsField, kDocumentStartField, kPositionsField};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(fields[i].name, names[i]);
    EXPECT_EQ(fields[i].dtype, DType::int32);
    EXPECT_EQ(fields[i].shape, Shape{6});
    std::int32_t padding = 0;
    std::memset(&padding, fields[i].padding_byte, sizeof padding);
    EXPECT_EQ(padding, i == 1 ? -1 : 0) << "token 0 and position 0 exist in every model";
  }
}

TEST(TextSet, WindowsThatCannotBeFilledAreErrorsThatNameTheKey) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_text(path);
  EXPECT_EQ(open(path, 16)->info().n_samples, 1);
  EXPECT_ERROR(ErrorCode::data_range, "the 16 tokens of " + path + " do not fill one window of 17: lower data.sequence",
               open(path, 17));
  EXPECT_EQ(open(path, 17, false)->info().n_samples, 4) << "shorter documents are padded";
  EXPECT_ERROR(ErrorCode::data_range, "data.sequence_length must be at least 2", open(path, 1));
  EXPECT_ERROR(ErrorCode::data_range, "data.sequence_length must be at least 2", open(path, 0, false));
  write_test_text(path, {.documents = {{1}, {3}, {2}}, .vocabulary_size = 12, .end_token = {}});
  EXPECT_ERROR(ErrorCode::data_source, "none of its 3 documents has 2 tokens or more", open(path, 2, false));
  const auto pairs = open(path, 2);
  EXPECT_EQ(ReadWindow(*pairs, 0).targets, (Ids{-1, -1}));
}

TEST(TextSet, AnIdOutsideOfTheVocabularyIsAnErrorWhenItIsRead) {
  TemporaryFolder folder;
  for (const int vocabulary_size : {12, 70000}) {
    const std::string path = folder / "set.h5";
    write_test_text(path, {.vocabulary_size = vocabulary_size});
    const TextFile layout = open_text_file(InputFile(path));
    const auto width = static_cast<std::size_t>(layout.token_bytes);
    const std::uint32_t id = static_cast<std::uint32_t>(vocabulary_size);
    overwrite(path, layout.tokens.offset + 9 * width, std::as_bytes(std::span(&id, 1)).first(width));
    const auto set = open(path, 4);
    EXPECT_EQ(ReadWindow(*set, 1).tokens, (Ids{4, 0, 5, 6}));
    EXPECT_ERROR(ErrorCode::data_damaged,
                 fmt::format("token 9 has the id {0}, but the vocabulary has {0} tokens", vocabulary_size),
                 ReadWindow(*set, 2));
  }
}

TEST(TextSet, AFileThatChangesOrShrinksIsNamed) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_text(path);
  const auto set = open(path, 4);
  set->require_unchanged();
  const TextFile layout = open_text_file(InputFile(path));
  std::filesystem::resize_file(path, layout.tokens.offset + 20);
  EXPECT_EQ(ReadWindow(*set, 1).tokens, (Ids{4, 0, 5, 6}));
  EXPECT_ERROR(ErrorCode::data_damaged, "tokens 8 to 11", ReadWindow(*set, 2));
  EXPECT_ERROR(ErrorCode::data_changed, "has changed from", set->require_unchanged());
}

TEST(SyntheticText, IsAFunctionOfSeedSplitAndSample) {
  const auto set = make_synthetic_text(3, 10, 50, 1000);
  EXPECT_EQ(set->info().n_samples, 10);
  EXPECT_EQ(set->info().n_tokens, 500);
  EXPECT_EQ(set->info().path, "synthetic");
  EXPECT_EQ(set->info().tokenizer_hash, "");
  EXPECT_EQ(set->info().end_token, std::nullopt);
  const ReadWindow w(*set, 7);
  EXPECT_EQ(w.tokens, ReadWindow(*make_synthetic_text(3, 10, 50, 1000), 7).tokens);
  EXPECT_EQ(w.tokens, ReadWindow(*make_synthetic_text(3, 3, 50, 1000, "train", 5), 2).tokens);
  EXPECT_NE(w.tokens, ReadWindow(*set, 6).tokens);
  EXPECT_NE(w.tokens, ReadWindow(*make_synthetic_text(4, 10, 50, 1000), 7).tokens);
  EXPECT_NE(w.tokens, ReadWindow(*make_synthetic_text(3, 10, 50, 1000, "val"), 7).tokens);
  for (std::size_t t = 0; t < 50; ++t) {
    EXPECT_TRUE(w.tokens[t] >= 0 && w.tokens[t] < 1000);
    EXPECT_EQ(w.targets[t], t + 1 < 50 ? w.tokens[t + 1] : -1);
    EXPECT_EQ(w.document_start[t], 0);
    EXPECT_EQ(w.positions[t], static_cast<int>(t));
  }
  EXPECT_ERROR(ErrorCode::data_range, "is not possible", make_synthetic_text(3, 0, 50, 1000));
  EXPECT_ERROR(ErrorCode::data_range, "is not possible", make_synthetic_text(3, 1, 1, 1000));
}

// Each of the 16 tokens is drawn with probability 1/16: in 16,000 draws, 1000 are expected, with a standard deviation
// of 31.
TEST(SyntheticText, TokensAreUniform) {
  const auto set = make_synthetic_text(1, 100, 160, 16);
  std::vector<int> count(16, 0);
  for (std::int64_t s = 0; s < 100; ++s)
    for (const std::int32_t id : ReadWindow(*set, s).tokens) ++count.at(static_cast<std::size_t>(id));
  for (const int n : count) EXPECT_NEAR(n, 1000, 5 * 31);
}

}  // namespace
}  // namespace lockstep::data
