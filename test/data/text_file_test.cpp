// Files of text sets: what was written can be read back; damaged, foreign or absurd files result in an error.
#include "data/text_file.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "data/user_block.h"
#include "hdf5/writer.h"
#include "test/data/text_files.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

Verification verify(const std::string& path) {
  const InputFile file(path);
  return verify_text_file(file, open_text_file(file), {});
}

/// Opens the file and reads every window. Returns true if that succeeds.
bool reads(const std::string& path) {
  try {
    const auto set = open_text_set(path, 0, 0, {.sequence_length = 4});
    for (std::int64_t i = 0; i < set->info().n_samples; ++i) ReadWindow(*set, i);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// A file as another program might write it, without a user block. Each part may be wrong.
struct Foreign {
  std::string token_type = "uint16", document_type = "uint64", tokenizer_type = "uint8";
  std::vector<std::uint64_t> token_dims = {6};
  std::vector<std::uint64_t> documents = {0, 2, 6};
  std::string format = "lockstep-text";
  std::int64_t version = 1, vocabulary_size = 10, end_token = 9;
  bool has_hash = true;
};

std::string write_foreign(const TemporaryFolder& folder, const Foreign& f) {
  const std::string path = folder / "foreign.h5";
  hdf5::Writer hdf5(path, {});
  hdf5.create_dataset("tokens", f.token_type, f.token_dims);
  const std::vector<std::uint16_t> tokens{1, 2, 3, 4, 5, 6};
  if (f.token_type == "uint16" && f.token_dims == Foreign{}.token_dims) hdf5.write_rows("tokens", 0, 6, tokens.data());
  hdf5.create_dataset("documents", f.document_type, {f.documents.size()});
  if (f.document_type == "uint64") hdf5.write_rows("documents", 0, f.documents.size(), f.documents.data());
  hdf5.create_dataset("tokenizer", f.tokenizer_type, {2});
  if (f.tokenizer_type == "uint8") hdf5.write_rows("tokenizer", 0, 2, "{}");
  hdf5.attribute("format", f.format);
  hdf5.attribute("format_version", f.version);
  hdf5.attribute("vocabulary_size", f.vocabulary_size);
  if (f.has_hash) hdf5.attribute("tokenizer_hash", std::string("a hash"));
  hdf5.attribute("end_token", f.end_token);
  hdf5.close();
  return path;
}

TEST(TextFile, ContainsWhatWasWritten) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_text(path);
  const InputFile file(path);
  const TextFile layout = open_text_file(file);
  EXPECT_EQ(layout.n_documents, 5);
  EXPECT_EQ(layout.n_tokens, 16);
  EXPECT_EQ(layout.token_bytes, 2);
  EXPECT_EQ(layout.description.vocabulary_size, 12);
  EXPECT_EQ(layout.description.tokenizer_hash, "0123456789abcdef");
  EXPECT_EQ(layout.description.end_token, 0);
  EXPECT_EQ(layout.description.source, "test");
  EXPECT_TRUE(layout.has_user_block);
  EXPECT_EQ(read_tokenizer(file, layout), kTestTokenizer);
  EXPECT_EQ(read_documents(file, layout, 0, 6), (std::vector<std::uint64_t>{0, 4, 6, 12, 13, 16}));
  EXPECT_EQ(read_documents(file, layout, 2, 3), (std::vector<std::uint64_t>{6, 12, 13}));
  EXPECT_EQ(check_documents(file, layout), 6) << "the longest";
  EXPECT_TRUE(verify(path).is_valid());
  write_test_text(path, {.end_token = {}});
  EXPECT_EQ(open_text_file(InputFile(path)).description.end_token, std::nullopt);
  std::size_t n_files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder.path())) ++n_files;
  EXPECT_EQ(n_files, 1u) << "nothing but the set is left";
}

TEST(TextFile, EqualContentIsWrittenAsEqualBytes) {
  TemporaryFolder folder;
  write_test_text(folder / "a.h5");
  // HDF5 stores times in seconds, unless it is configured not to.
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  TextFileWriter writer(folder / "b.h5", false, 12);
  for (const Ids& document : TestText{}.documents) {
    for (const std::int32_t id : document) writer.append({&id, 1});
    writer.end_document();
  }
  EXPECT_EQ(writer.n_documents(), 5);
  EXPECT_EQ(writer.n_tokens(), 16);
  const TextFile layout = open_text_file(InputFile(folder / "a.h5"));
  writer.finish(layout.description, kTestTokenizer);
  EXPECT_TRUE(read_all(folder / "a.h5") == read_all(folder / "b.h5")) << "the pieces of append() do not matter";
}

// 40 MiB of tokens: three blocks, and many buffers.
TEST(TextFile, EveryBlockOfTokensHasAChecksum) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  constexpr std::uint64_t kTokens = 20u << 20;
  {
    TextFileWriter writer(path, true, 50000);
    Ids ids(999'983);
    for (std::uint64_t n = 0; n < kTokens;) {
      ids.resize(std::min<std::uint64_t>(ids.size(), kTokens - n));
      for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>((n + i) * 2654435761u % 50000);
      writer.append(ids);
      writer.end_document();
      n += ids.size();
    }
    writer.finish({.vocabulary_size = 50000, .tokenizer_hash = "h", .end_token = {}, .source = ""}, kTestTokenizer);
  }
  const InputFile file(path);
  const TextFile layout = open_text_file(file);
  EXPECT_EQ(layout.block_hashes.size_bytes, 3 * sizeof(std::uint64_t));
  EXPECT_TRUE(verify(path).is_valid());
  std::vector<std::uint16_t> tokens(kTokens);
  file.read(layout.tokens.offset, std::as_writable_bytes(std::span(tokens)), "tokens");
  for (std::uint64_t i = 0; i < kTokens; ++i) ASSERT_EQ(tokens[i], i * 2654435761u % 50000) << i;

  const std::uint16_t other = static_cast<std::uint16_t>(tokens[9u << 20] ^ 1), outside = 50000;
  overwrite(path, layout.tokens.offset + 2 * (9u << 20), std::as_bytes(std::span(&other, 1)));
  overwrite(path, layout.tokens.offset + 2 * (kTokens - 1), std::as_bytes(std::span(&outside, 1)));
  const std::vector<std::string> damaged = verify(path).damaged;
  ASSERT_EQ(damaged.size(), 2u);
  EXPECT_NE(damaged[0].find("block 1 of '/tokens'"), std::string::npos) << damaged[0];
  EXPECT_NE(damaged[1].find("block 2 of '/tokens'"), std::string::npos) << damaged[1];
}

TEST(TextFile, DamagedDocumentsAreReported) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  const auto damaged_by = [&](std::size_t number, std::uint64_t value) {
    write_test_text(path);
    const TextFile layout = open_text_file(InputFile(path));
    overwrite(path, layout.documents.offset + 8 * number, std::as_bytes(std::span(&value, 1)));
    EXPECT_EQ(verify(path).damaged.size(), value == 5 ? 1u : 2u);
    return thrown_by([&] { open_text_set(path, 0, 0, {.sequence_length = 4}); }).text;
  };
  EXPECT_NE(damaged_by(0, 1).find("must go from 0 to the 16 tokens, but begins with 1"), std::string::npos);
  EXPECT_NE(damaged_by(2, 4).find("position 2 is 4, after 4"), std::string::npos);
  EXPECT_NE(damaged_by(3, ~std::uint64_t{0}).find("position 3 is 18446744073709551615"), std::string::npos);
  EXPECT_NE(damaged_by(5, 15).find("ends at 15"), std::string::npos);
  EXPECT_EQ(damaged_by(1, 5), "") << "possible positions are only detected by their checksum";
}

TEST(TextFile, EveryFlipInTheMetadataIsDetectedBeforeHdf5OpensTheFile) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_text(path);
  const std::string whole = read_all(path);
  const TextFile layout = open_text_file(InputFile(path));
  std::mt19937 random(1);
  for (int i = 0; i < n_flips();) {
    const std::size_t at = hdf5::kUserBlockBytes + random() % (whole.size() - hdf5::kUserBlockBytes);
    const auto is_in = [&](const ByteRange& range) { return at >= range.offset && at < range.end(); };
    if (is_in(layout.tokens) || is_in(layout.documents)) continue;
    ++i;
    std::string damaged = whole;
    damaged[at] ^= static_cast<char>(1 << random() % 8);
    write_all(path, damaged);
    EXPECT_ERROR(ErrorCode::data_damaged, "metadata of the file is damaged", open_text_file(InputFile(path)));
  }
}

TEST(TextFile, EveryFlipInTheUserBlockIsAnErrorOrHarmless) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_text(path);
  const std::string whole = read_all(path);
  constexpr std::size_t kBlockBytes = 80;
  for (std::size_t i = 0; i < kBlockBytes + 16; ++i) {
    std::string damaged = whole;
    damaged[i] ^= 0x10;
    write_all(path, damaged);
    EXPECT_EQ(reads(path), i >= kBlockBytes) << "byte " << i;  // those after the block's own checksum are unused
  }
  for (std::size_t size = 80; size < whole.size(); size += size < 240 ? 1 : 61) {
    write_all(path, whole.substr(0, size));
    EXPECT_ERROR(ErrorCode::data_damaged, "is truncated", open_text_file(InputFile(path)));
  }
  write_all(path, "");
  EXPECT_ERROR(ErrorCode::data_damaged, "is empty", open_text_file(InputFile(path)));
}

// The user block and the metadata are each valid, but they belong to different files.
TEST(TextFile, AUserBlockOfOtherPositionsIsRejected) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_text(path);
  const TextFile layout = open_text_file(InputFile(path));
  const StoredBytes tokens = StoredBytes::contiguous(layout.tokens);
  ByteRange shorter = layout.documents;
  shorter.size_bytes -= 8;
  write_user_block(path, {tokens, shorter, hdf5::FileKind::text});
  EXPECT_ERROR(ErrorCode::data_damaged, "disagree about the position of the tokens", open_text_file(InputFile(path)));
  write_user_block(path, {tokens, layout.documents, hdf5::FileKind::images});
  EXPECT_ERROR(ErrorCode::data_format, "is a data set of images; expected one of text",
               open_text_file(InputFile(path)));
}

TEST(TextFile, WithoutItsUserBlockAFileHasTheSameLayout) {
  TemporaryFolder folder;
  write_test_text(folder / "set.h5");
  expect_same_layout_from_child(folder / "set.h5", open_text_file);
}

TEST(TextFile, FlipsInAForeignFileNeverCrash) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_text(path);
  remove_user_block(path);  // without it, HDF5 itself has to detect the damage
  const std::string whole = read_all(path);
  EXPECT_TRUE(reads(path));
  std::mt19937 random(2);
  int n_errors = 0;
  for (int i = 0; i < n_flips(); ++i) {
    std::string damaged = whole;
    damaged[random() % whole.size()] ^= static_cast<char>(1 << random() % 8);
    write_all(path, damaged);
    n_errors += !reads(path);
  }
  EXPECT_GT(n_errors, 0);
}

TEST(TextFile, AFileOfAnotherProgramIsReadIfItHasTheLayout) {
  TemporaryFolder folder;
  const std::string path = write_foreign(folder, {});
  const TextFile layout = open_text_file(InputFile(path));
  EXPECT_FALSE(layout.has_user_block);
  EXPECT_EQ(layout.n_tokens, 6);
  EXPECT_EQ(ReadWindow(*open_text_set(path, 0, 0, {.sequence_length = 3}), 1).tokens, (Ids{4, 5, 6}));
  const Verification found = verify(path);
  EXPECT_TRUE(found.damaged.empty());
  ASSERT_EQ(found.unchecked.size(), 3u);
  EXPECT_NE(found.unchecked[1].find("'/tokens'"), std::string::npos);
  EXPECT_NE(found.unchecked[2].find("'/documents'"), std::string::npos);
}

// Otherwise a changed byte there would turn off the check of the length and the metadata.
TEST(TextFile, OfAnImportWithoutAValidUserBlockIsDamaged) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_text(path);
  for (const std::size_t n_bytes : {1u, 4096u}) {
    overwrite(path, 0, std::vector<std::byte>(n_bytes));
    EXPECT_TRUE(is_text_file(InputFile(path)));
    EXPECT_ERROR(ErrorCode::data_damaged, "damaged in its user block", open_text_file(InputFile(path)));
  }
}

TEST(TextFile, AForeignFileThatIsWrongIsRefused) {
  TemporaryFolder folder;
  const auto refused = [&](ErrorCode code, const std::string& part, const Foreign& f) {
    EXPECT_ERROR(code, part, open_text_file(InputFile(write_foreign(folder, f))));
  };
  constexpr auto kFormat = ErrorCode::data_format;
  refused(kFormat, "lacks the attribute format='lockstep-text' and has format='x'", {.format = "x"});
  refused(kFormat, "has format version 3; this program reads versions 1 to 2", {.version = 3});
  refused(kFormat, "'/tokens' must be uint16 or uint32 (tokens), but is int32 (6)", {.token_type = "int32"});
  refused(kFormat, "'/tokens' must be uint16 or uint32", {.token_dims = {3, 2}});
  refused(kFormat, "'/documents' must be uint64 (documents + 1), but is int32 (3)", {.document_type = "int32"});
  refused(kFormat, "'/tokenizer' must be uint8", {.tokenizer_type = "uint16"});
  refused(kFormat, "a vocabulary of 0 tokens is not possible", {.vocabulary_size = 0});
  refused(kFormat, "a vocabulary of 4294967296 tokens", {.vocabulary_size = std::int64_t{1} << 32});
  refused(kFormat, "the end token 10 is not one of the 10 tokens", {.end_token = 10});
  refused(kFormat, "lacks the attribute 'tokenizer_hash'", {.has_hash = false});
  refused(ErrorCode::data_source, "contains no tokens", {.token_dims = {0}});
  refused(ErrorCode::data_source, "contains no tokens", {.documents = {0}});
  const std::string path = write_foreign(folder, {.documents = {0, 7}});
  EXPECT_ERROR(kFormat, "position 1 is 7", open_text_set(path, 0, 0, {.sequence_length = 2}));
  write_all(folder / "text", std::string(5000, 'x'));
  EXPECT_ERROR(kFormat, "is not an HDF5 file", open_text_file(InputFile(folder / "text")));
  write_test_set(folder / "images.h5");
  EXPECT_ERROR(kFormat, "is a data set of images; expected one of text",
               open_text_file(InputFile(folder / "images.h5")));
  write_test_text(folder / "text.h5");
  EXPECT_ERROR(kFormat, "is a data set of text; expected one of images", open_image_set(folder / "text.h5"));
}

// A sparse file can have any length: memory is allocated only for positions that were found to be plausible.
TEST(TextFile, AbsurdSizesAreRefusedBeforeMemoryIsAllocated) {
  TemporaryFolder folder;
  const std::string path = folder / "sparse.h5";
  const auto write_sparse = [&](std::uint64_t n_tokens, std::uint64_t n_documents, std::uint64_t tokenizer_bytes) {
    hdf5::Writer hdf5(path, {});
    hdf5.reserve_dataset("/tokens", "uint16", {n_tokens});
    hdf5.reserve_dataset("/documents", "uint64", {n_documents + 1});
    hdf5.reserve_dataset("/tokenizer", "uint8", {tokenizer_bytes});
    hdf5.attribute("format", std::string("lockstep-text"));
    hdf5.attribute("format_version", std::int64_t{1});
    hdf5.attribute("vocabulary_size", std::int64_t{10});
    hdf5.attribute("tokenizer_hash", std::string("h"));
    hdf5.close();
  };
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 37;  // 1 TiB of positions
  write_sparse(kHuge, kHuge, 2);
  EXPECT_ERROR(ErrorCode::data_format, "position 1 is 0, after 0", open_text_set(path, 0, 0, {.sequence_length = 2}));
  write_sparse(6, kHuge, 2);
  EXPECT_ERROR(ErrorCode::data_format, "cannot have 6 tokens", open_text_file(InputFile(path)));
  write_sparse(6, 1, kHuge);
  EXPECT_ERROR(ErrorCode::data_format, "its tokenizer has", open_text_file(InputFile(path)));
  write_sparse(kHuge, 1, 2);
  fs::resize_file(path, 1u << 20);
  EXPECT_ERROR(ErrorCode::data_damaged, "truncated", open_text_file(InputFile(path)));
}

TEST(TextFileWriter, RefusesWhatCannotBeStored) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  TextFileWriter writer(path, false, 10);
  const Ids outside{3, 10}, negative{-1};
  EXPECT_ERROR(ErrorCode::data_source, "the id 10 of token 1 is not one of the 10 tokens", writer.append(outside));
  EXPECT_ERROR(ErrorCode::data_source, "the id -1", writer.append(negative));
  const TextDescription description{.vocabulary_size = 10, .tokenizer_hash = "h", .end_token = {}, .source = ""};
  EXPECT_ERROR(ErrorCode::internal, "document 0 has no tokens", writer.end_document());
  EXPECT_ERROR(ErrorCode::data_source, "is not written", writer.finish(description, "{}"));
  EXPECT_FALSE(fs::exists(path));
  write_all(path, "precious");
  EXPECT_ERROR(ErrorCode::data_exists, "--force", TextFileWriter(path, false, 10));
  EXPECT_ERROR(ErrorCode::system_call, "is not a folder", TextFileWriter(path + "/x.h5", true, 10));
  EXPECT_EQ(read_all(path), "precious");
}

}  // namespace
}  // namespace lockstep::data
