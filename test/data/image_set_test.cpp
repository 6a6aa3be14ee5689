// Image sets in files: what was written can be read back; damaged, foreign or absurd files result in an error.
#include "data/image_set.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "data/file.h"
#include "hdf5/writer.h"
#include "test/data/files.h"
#include "test/support/emulator.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

void expect_samples(const ImageSet& set, std::int64_t first = 0) {
  std::vector<std::uint8_t> image(set.info().image_bytes());
  for (std::int64_t i = 0; i < set.info().n_samples; ++i) {
    std::int32_t label = -1;
    set.read_image(i, 0, image, label);
    EXPECT_EQ(image, test_image(first + i, image.size())) << "sample " << i;
    EXPECT_EQ(label, test_label(first + i, set.info().classes));
  }
}

/// A file as another program might write it, without a user block. Each part may be missing or wrong.
struct Foreign {
  std::vector<std::uint64_t> image_dims = {4, 2, 2, 3};
  std::string image_type = "uint8", label_type = "int32";
  std::uint64_t n_labels = 4;
  std::string format = "lockstep-images";
  std::int64_t version = 1, classes = 7;
  std::vector<float> mean = {0.5f, 0.5f, 0.5f}, stddev = {0.25f, 0.25f, 0.25f};
  std::vector<std::string> class_names = {};
  bool images = true, statistics = true;
  std::uint64_t chunk_rows = 0;     // images in a chunk; 0: contiguous
  std::uint64_t n_written = ~0ull;  // images
};

std::string write_foreign(const TemporaryFolder& folder, const Foreign& f) {
  const std::string path = folder / "foreign.h5";
  hdf5::Writer hdf5(path, {});
  std::uint64_t image_bytes = 1;
  for (std::size_t i = 1; i < f.image_dims.size(); ++i) image_bytes *= f.image_dims[i];
  if (f.images) {
    hdf5.create_dataset("images", f.image_type, f.image_dims, f.chunk_rows);
    for (std::uint64_t i = 0; i < std::min(f.n_written, f.image_dims[0]) && f.image_type == "uint8"; ++i)
      hdf5.write_rows("images", i, 1, test_image(static_cast<std::int64_t>(i), image_bytes).data());
  }
  hdf5.create_dataset("labels", f.label_type, {f.n_labels});
  std::vector<std::int32_t> labels;
  for (std::uint64_t i = 0; i < f.n_labels; ++i) labels.push_back(test_label(static_cast<std::int64_t>(i), 7));
  if (f.label_type == "int32") hdf5.write_rows("labels", 0, f.n_labels, labels.data());
  hdf5.attribute("format", f.format);
  hdf5.attribute("format_version", f.version);
  hdf5.attribute("classes", f.classes);
  if (f.statistics) hdf5.attribute("mean", std::span<const float>(f.mean));
  if (f.statistics) hdf5.attribute("std", std::span<const float>(f.stddev));
  if (!f.class_names.empty()) hdf5.attribute("class_names", f.class_names);
  hdf5.close();
  return path;
}

TEST(ImageSet, NamesThatAreNotUtf8AreReplaced) {
  TemporaryFolder folder;
  const auto set =
      open_image_set(write_foreign(folder, {.classes = 7, .class_names = {"caf\xe9", "dög", "c", "d", "e", "f", "g"}}));
  EXPECT_EQ(set->info().class_names[0], "caf\xEF\xBF\xBD");
  EXPECT_EQ(set->info().class_names[1], "dög");
}

TEST(ImageSet, ReadsWhatWasWritten) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_set(path);
  const auto set = open_image_set(path);
  EXPECT_EQ(set->info().path, path);
  EXPECT_EQ(set->info().split, "train");
  EXPECT_EQ(set->info().n_samples, 23);
  EXPECT_EQ(set->info().height, 5);
  EXPECT_EQ(set->info().width, 4);
  EXPECT_EQ(set->info().channels, 3);
  EXPECT_EQ(set->info().classes, 7);
  EXPECT_EQ(set->info().mean, std::vector<float>(3, 0.5f));
  EXPECT_EQ(set->info().stddev, std::vector<float>(3, 0.25f));
  EXPECT_EQ(set->info().class_names.at(6), "class 6");
  expect_samples(*set);
  const InputFile file(path);
  const ImageFile layout = open_image_file(file);
  EXPECT_TRUE(layout.has_user_block);
  EXPECT_TRUE(verify_image_file(file, layout, {}).is_valid());
}

TEST(ImageSet, WithoutItsUserBlockAFileHasTheSameLayout) {
  TemporaryFolder folder;
  for (const Placement& placement : {kDefaultPlacement, Placement{.alignment_bytes = 512, .chunk_bytes = 600}}) {
    write_test_set(folder / "set.h5", {}, {}, placement);
    expect_same_layout_from_child(folder / "set.h5", open_image_file);
  }
}

TEST(ImageSet, EqualContentIsWrittenAsEqualBytes) {
  TemporaryFolder folder;
  for (const Placement& placement : {kDefaultPlacement, Placement{.alignment_bytes = 512, .chunk_bytes = 600}}) {
    write_test_set(folder / "a.h5", {}, {}, placement);
    // HDF5 stores times in seconds, unless it is configured not to.
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    write_test_set(folder / "b.h5", {}, {}, placement);
    EXPECT_TRUE(read_all(folder / "a.h5") == read_all(folder / "b.h5"));
  }
}

// An image has 60 bytes, and all 23 images have 1380.
TEST(ImageSet, ChunkedFilesHaveTheSameContent) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_set(path, {}, {}, {});
  const ImageFile contiguous = open_image_file(InputFile(path));
  EXPECT_FALSE(contiguous.images.chunked());
  struct Case {
    std::uint64_t alignment_bytes, chunk_bytes, images_in_a_chunk, n_chunks;
  };
  for (const Case& c : {Case{0, 1, 1, 23},
                        {0, 60, 1, 23},
                        {0, 179, 2, 12},
                        {0, 690, 11, 3},
                        {0, 720, 12, 2},
                        {64, 70, 1, 23},
                        {512, 600, 10, 3},
                        {4096, 4096, 0, 1},
                        {512, 1379, 22, 2},
                        {512, 1380, 0, 1}}) {
    SCOPED_TRACE(fmt::format("alignment {}, chunk {}", c.alignment_bytes, c.chunk_bytes));
    write_test_set(path, {}, {}, {.alignment_bytes = c.alignment_bytes, .chunk_bytes = c.chunk_bytes});
    const InputFile file(path);
    const ImageFile layout = open_image_file(file);
    EXPECT_TRUE(layout.has_user_block);
    EXPECT_EQ(layout.images.chunked(), c.n_chunks > 1);
    ASSERT_EQ(layout.images.offsets.size(), c.n_chunks);
    EXPECT_EQ(layout.images.chunk_bytes, c.n_chunks > 1 ? 60 * c.images_in_a_chunk : 1380);
    for (const std::uint64_t offset : layout.images.offsets)
      EXPECT_TRUE(c.n_chunks == 1 || c.alignment_bytes == 0 || offset % c.alignment_bytes == 0) << offset;
    EXPECT_EQ(layout.images_xxh3, contiguous.images_xxh3);
    EXPECT_TRUE(verify_image_file(file, layout, {}).is_valid());
    expect_samples(*open_image_set(path));
    expect_samples(*open_image_set(path, 11, 20), 11);
    // HDF5 reports the same chunk positions as the ones in the user block.
    const std::uint64_t n_bytes = remove_user_block(path);
    ImageFile foreign = open_image_file(InputFile(path));
    move_back(foreign, n_bytes);
    EXPECT_EQ(foreign.images, layout.images);
  }
}

// If HDF5 were asked for every chunk, this would take ten minutes.
TEST(ImageSet, OpensManyChunksQuickly) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_set(path, {.n_samples = 100'000, .height = 1, .width = 1}, {}, {.alignment_bytes = 0, .chunk_bytes = 3});
  const auto set = open_image_set(path);
  EXPECT_EQ(open_image_file(InputFile(path)).images.offsets.size(), 100'000u);
  expect_samples(*set);
}

TEST(ImageSet, VerifyFindsADamagedChunk) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_set(path, {}, {}, {.alignment_bytes = 512, .chunk_bytes = 512});
  const InputFile file(path);
  const ImageFile layout = open_image_file(file);
  const std::byte changed[1] = {std::byte{static_cast<unsigned char>(test_byte(17, 3) ^ 1)}};
  overwrite(path, layout.images.contiguous_range(17 * 60 + 3, 1).offset, changed);
  const auto damaged = verify_image_file(file, open_image_file(file), {}).damaged;
  ASSERT_EQ(damaged.size(), 1u);
  EXPECT_NE(damaged[0].find("'/images' (3 chunks of 480 bytes) is damaged"), std::string::npos) << damaged[0];
}

TEST(StoredBytes, RangesEndWhereTheFileHasAGap) {
  // Bytes 0 to 4 are at 100, 5 to 9 at 40, 10 to 14 directly after those, and 15 and 16 at 60.
  const StoredBytes stored{17, 5, {100, 40, 45, 60}};
  EXPECT_EQ(stored.contiguous_range(0, 17), (ByteRange{100, 5}));
  EXPECT_EQ(stored.contiguous_range(3, 1), (ByteRange{103, 1}));
  EXPECT_EQ(stored.contiguous_range(5, 12), (ByteRange{40, 10}));
  EXPECT_EQ(stored.contiguous_range(9, 6), (ByteRange{44, 6}));
  EXPECT_EQ(stored.contiguous_range(9, 7), (ByteRange{44, 6}));
  EXPECT_EQ(stored.contiguous_range(15, 2), (ByteRange{60, 2}));
  EXPECT_EQ(StoredBytes::contiguous({7, 50}).contiguous_range(20, 30), (ByteRange{27, 30}));
  EXPECT_EQ(StoredBytes::in_a_row(17, 5, 100, 40, 5), (StoredBytes{17, 5, {100, 40, 45, 50}}));
}

TEST(ImageSet, OpensARange) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_set(path);
  const auto middle = open_image_set(path, 5, 9);
  EXPECT_EQ(middle->info().n_samples, 4);
  expect_samples(*middle, 5);
  EXPECT_EQ(open_image_set(path, 20, 0)->info().n_samples, 3);
  EXPECT_ERROR(ErrorCode::data_range, "23 samples", open_image_set(path, 0, 24));
  EXPECT_ERROR(ErrorCode::data_range, "23 samples", open_image_set(path, 9, 9));
  EXPECT_ERROR(ErrorCode::data_range, "23 samples", open_image_set(path, -1, 3));
  EXPECT_ERROR(ErrorCode::data_range, "23 samples", open_image_set(path, 23, 0));
}

TEST(ImageSet, AnUnfinishedFileDoesNotAppear) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  {
    ImageFileWriter writer(path, false, 2, 1, 1, 1);
    const std::uint8_t image = 1;
    const std::int32_t label = 0;
    writer.append(std::span(&image, 1), std::span(&label, 1));
    EXPECT_ERROR(ErrorCode::internal, "1 of 2 samples", writer.finish({}, ""));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
  write_test_set(path);
  EXPECT_ERROR(ErrorCode::data_exists, "--force", ImageFileWriter(path, false, 1, 1, 1, 1));
  EXPECT_ERROR(ErrorCode::system_call, "No such file", ImageFileWriter(folder / "no/set.h5", false, 1, 1, 1, 1));
}

TEST(ImageSet, ReportsMissingEmptyAndForeignFiles) {
  TemporaryFolder folder;
  EXPECT_ERROR(ErrorCode::cannot_open, "No such file", open_image_set(folder / "none.h5"));
  EXPECT_ERROR(ErrorCode::cannot_open, "is not a regular file", open_image_set(folder.path()));
  write_all(folder / "empty.h5", "");
  EXPECT_ERROR(ErrorCode::data_damaged, "empty (0 bytes)", open_image_set(folder / "empty.h5"));
  write_all(folder / "text.h5", std::string(5000, 'x'));
  EXPECT_ERROR(ErrorCode::data_format, "not an HDF5 file", open_image_set(folder / "text.h5"));
  write_all(folder / "short.h5", "x");
  EXPECT_ERROR(ErrorCode::data_format, "not an HDF5 file", open_image_set(folder / "short.h5"));
  write_all(folder / "signature.h5", "\x89HDF\r\n\x1a\n");
  EXPECT_ERROR(ErrorCode::data_format, "cannot be opened as HDF5", open_image_set(folder / "signature.h5"));
}

TEST(ImageSet, AFileWithoutPermissionIsReported) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  if (test::in_emulator()) GTEST_SKIP() << "qemu does not change users";
  TemporaryFolder folder;
  write_test_set(folder / "set.h5");
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod((folder / "set.h5").c_str(), 0600), 0);
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(::seteuid(kNobody), 0);
  const Thrown reading = thrown_by([&] { open_image_set(folder / "set.h5"); });
  const Thrown writing = thrown_by([&] { ImageFileWriter(folder / "new.h5", false, 1, 1, 1, 1); });
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(entry(reading.code).code, "cannot_open") << reading.text;
  EXPECT_EQ(entry(writing.code).code, "system_call") << writing.text;
  for (const Thrown& thrown : {reading, writing}) EXPECT_TRUE(thrown.contains("Permission denied")) << thrown.text;
}

// A limit on file sizes stands in for a full disk. HDF5 must crash neither now nor when the program ends.
TEST(ImageSet, ReportsAFullDisk) {
  constexpr std::uint64_t kChunk = 4096;
  for (const Placement& placement : {Placement{}, Placement{.alignment_bytes = 512, .chunk_bytes = kChunk}}) {
    TemporaryFolder folder;
    const std::string path = folder / "set.h5";
    const TestSet set{.n_samples = 400};
    write_test_set(path, set, {}, placement);
    const std::string before = read_all(path);
    rlimit old{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
    const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
    for (const rlim_t limit : {rlim_t{1}, rlim_t{6000}, rlim_t{before.size() / 2}, rlim_t{before.size() - 1}}) {
      const rlimit small{limit, old.rlim_max};
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
      const Thrown thrown = thrown_by([&] { write_test_set(path, set, {}, placement); });
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
      EXPECT_EQ(entry(thrown.code).code, "system_call") << thrown.text;
      EXPECT_TRUE(thrown.text.starts_with(path + ": ") && thrown.text.ends_with(" failed: File too large"))
          << limit << ": " << thrown.text;
      EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
    }
    std::signal(SIGXFSZ, old_handler);
    EXPECT_TRUE(read_all(path) == before);
    write_test_set(path, set, {}, placement);  // the program continues, and can write again
    EXPECT_TRUE(read_all(path) == before);
  }
}

TEST(ImageSet, ReportsTruncationAnywhere) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_set(path);
  const std::string whole = read_all(path);
  for (std::size_t size = 1; size < whole.size(); size += 61) {
    write_all(path, whole.substr(0, size));
    const Thrown thrown = thrown_by([&] { open_image_set(path); });
    ASSERT_TRUE(thrown.thrown) << size;
    // A file of fewer than 80 bytes has no complete user block.
    EXPECT_TRUE(size < 80 || thrown.contains("is truncated")) << size << ": " << thrown.text;
  }
  write_all(path, whole + "x");
  EXPECT_ERROR(ErrorCode::data_damaged, "was written with", open_image_set(path));
}

TEST(ImageSet, ReportsSampleAndValueOfABadLabel) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_set(path, {.n_samples = 4}, {0, 6, 7, 1});
  EXPECT_ERROR(ErrorCode::data_damaged, "sample 2 has label 7", open_image_set(path));
  write_test_set(path, {.n_samples = 4}, {0, 6, 5, -1});
  EXPECT_ERROR(ErrorCode::data_damaged, "sample 3 has label -1", open_image_set(path));
}

TEST(ImageSet, ReportsAFileThatShrinksWhileOpen) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_set(path);
  const auto set = open_image_set(path);
  const std::uint64_t images = open_image_file(InputFile(path)).images.offsets[0];
  fs::resize_file(path, images + 10 * set->info().image_bytes() + 1);
  std::vector<std::uint8_t> image(set->info().image_bytes());
  std::int32_t label = 0;
  set->read_image(9, 0, image, label);
  EXPECT_EQ(image, test_image(9, image.size()));
  EXPECT_ERROR(ErrorCode::data_damaged, "shrank", set->read_image(10, 0, image, label));
  EXPECT_ERROR(ErrorCode::data_damaged, "sample 22", set->read_image(22, 0, image, label));
}

TEST(InputFile, ReportsWhatCouldNotBeRead) {
  // Reading unmapped memory through this file gives an input/output error, like a broken disk.
  const InputFile memory("/proc/self/mem");
  std::array<std::byte, 16> bytes;
  EXPECT_ERROR(ErrorCode::system_call, "sample 3", memory.read(0, bytes, "sample 3"));
  EXPECT_ERROR(ErrorCode::system_call, "Input/output error", memory.read(0, bytes, "sample 3"));
}

TEST(ImageSet, VerifyFindsADamagedImageAndLabel) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_set(path);
  const InputFile file(path);
  const ImageFile layout = open_image_file(file);
  const std::byte changed[1] = {std::byte{static_cast<unsigned char>(test_byte(3, 0) ^ 1)}};
  overwrite(path, layout.images.offsets[0] + 3 * layout.info.image_bytes(), changed);
  auto damaged = verify_image_file(file, open_image_file(file), {}).damaged;
  ASSERT_EQ(damaged.size(), 1u);
  EXPECT_NE(damaged[0].find("'/images'"), std::string::npos) << damaged[0];
  const std::byte label[1] = {std::byte{5}};
  overwrite(path, layout.labels.offset, label);
  damaged = verify_image_file(file, open_image_file(file), {}).damaged;
  ASSERT_EQ(damaged.size(), 2u);
  EXPECT_NE(damaged[1].find("'/labels'"), std::string::npos) << damaged[1];
}

TEST(ForeignFile, IsReadWhenItHasTheLayout) {
  TemporaryFolder folder;
  const std::string path = write_foreign(folder, {});
  const InputFile file(path);
  const ImageFile layout = open_image_file(file);
  EXPECT_FALSE(layout.has_user_block);
  expect_samples(*open_image_set(path));
  EXPECT_EQ(open_image_set(path)->info().content_hash, "");
  const Verification found = verify_image_file(file, layout, {});
  EXPECT_TRUE(found.damaged.empty());
  ASSERT_EQ(found.unchecked.size(), 3u);
  EXPECT_NE(found.unchecked[1].find("no images_xxh3"), std::string::npos);
}

TEST(ForeignFile, IsReadInChunks) {
  TemporaryFolder folder;
  for (const std::uint64_t chunk_rows : {1, 2, 3, 4}) {
    const std::string path = write_foreign(folder, {.chunk_rows = chunk_rows});
    const ImageFile layout = open_image_file(InputFile(path));
    EXPECT_EQ(layout.images.offsets.size(), (4 + chunk_rows - 1) / chunk_rows);
    EXPECT_EQ(layout.images.chunk_bytes, 12 * chunk_rows);
    expect_samples(*open_image_set(path));
  }
}

TEST(ForeignFile, ReportsMissingChunks) {
  TemporaryFolder folder;
  const auto bad = ErrorCode::data_format;
  EXPECT_ERROR(bad, "chunk 1 of '/images' was never written",
               open_image_set(write_foreign(folder, {.chunk_rows = 2, .n_written = 2})));
  EXPECT_ERROR(
      bad, "has 5000 chunks",
      open_image_set(write_foreign(folder, {.image_dims = {5000, 1, 1, 3}, .n_labels = 5000, .chunk_rows = 1})));

  // In this version of the file format, the index is a tree without checksums.
  const std::string path = write_foreign(folder, {.chunk_rows = 1});
  const std::string whole = read_all(path);
  const std::uint64_t third = open_image_file(InputFile(path)).images.offsets[2];
  std::size_t at = 0, n_found = 0;
  for (std::size_t i = 0; i + 8 <= whole.size(); ++i)
    if (std::memcmp(whole.data() + i, &third, 8) == 0) at = i, ++n_found;
  ASSERT_EQ(n_found, 1u);
  const auto size = static_cast<std::uint64_t>(whole.size());
  for (const std::uint64_t offset : {size - 11, size, std::uint64_t{1} << 40, ~std::uint64_t{12}}) {
    std::string damaged = whole;
    std::memcpy(damaged.data() + at, &offset, 8);
    write_all(path, damaged);
    EXPECT_ERROR(ErrorCode::data_damaged, "is truncated: chunk 2 of '/images' needs 12 bytes", open_image_set(path));
  }
  std::string other_place = whole;  // harmless: different image bytes are returned
  std::memcpy(other_place.data() + at, "\0\0\0\0\0\0\0\0", 8);
  write_all(path, other_place);
  EXPECT_EQ(open_image_set(path)->info().n_samples, 4);
}

TEST(ForeignFile, ReportsTruncation) {
  TemporaryFolder folder;
  const std::string path = write_foreign(folder, {});
  fs::resize_file(path, fs::file_size(path) - 1);
  EXPECT_ERROR(ErrorCode::data_damaged, "truncated file", open_image_set(path));
}

TEST(ForeignFile, ReportsEachWrongPart) {
  TemporaryFolder folder;
  const auto refused = [&](ErrorCode code, const std::string& part, const Foreign& foreign) {
    const std::string path = write_foreign(folder, foreign);
    EXPECT_ERROR(code, part, open_image_set(path));
  };
  const auto bad = ErrorCode::data_format;
  refused(bad, "format='lockstep-images'", {.format = "other"});
  refused(bad, "format version 5", {.version = 5});
  refused(bad, "no data set '/images'", {.images = false});
  refused(bad, "but is int32 (4, 2, 2, 3)", {.image_type = "int32"});
  refused(bad, "but is uint8 (4, 12)", {.image_dims = {4, 12}});
  refused(bad, "'/labels' must be int32 (samples), but is uint8 (4)", {.label_type = "uint8"});
  refused(bad, "4 images but 3 labels", {.n_labels = 3});
  refused(ErrorCode::data_source, "contains no samples", {.image_dims = {0, 2, 2, 3}, .n_labels = 0});
  refused(bad, "0 x 2 x 3", {.image_dims = {4, 0, 2, 3}});
  refused(bad, "0 classes", {.classes = 0});
  refused(bad, "attribute 'mean'", {.statistics = false});
  refused(bad, "one value per channel (3)", {.mean = {0.5f}});
  refused(bad, "'std' above 0", {.stddev = {0.25f, 0.0f, 0.25f}});
  refused(bad, "names 1 classes but has 7", {.class_names = {"only"}});
  refused(ErrorCode::data_damaged, "sample 1 has label 3", {.classes = 3});
}

}  // namespace
}  // namespace lockstep::data
