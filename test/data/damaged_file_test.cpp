// Damaged metadata: whatever byte is wrong, opening the file is an Error or a success, never a crash or a wrong image.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <random>
#include <vector>

#include "data/dataset.h"
#include "data/hdf5_file.h"
#include "data/limited_child.h"
#include "test/data/files.h"

namespace lockstep::data {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr int kFlips = 50;  // a fork takes a tenth of a second there
#else
constexpr int kFlips = 200;
#endif

/// Positions outside images and labels.
std::vector<std::size_t> metadata_bytes(std::size_t file_bytes, const ImageFile& layout, std::size_t from) {
  std::vector<std::size_t> out;
  for (std::size_t i = from; i < file_bytes; ++i)
    if (!(i >= layout.images.offset && i < layout.images.end()) &&
        !(i >= layout.labels.offset && i < layout.labels.end()))
      out.push_back(i);
  return out;
}

/// True when the file opened, all of it was read, and no byte came from elsewhere than the images.
bool reads(const std::string& path) {
  try {
    const auto set = open_image_set(path);
    std::vector<std::uint8_t> image(set->info().image_bytes());
    std::int32_t label = 0;
    for (std::int64_t i = 0; i < set->info().n_samples; ++i) set->read(i, 0, image, label);
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(DamagedFile, EveryFlipBehindTheSealIsSeenBeforeHdf5OpensIt) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_set(path);
  const std::string whole = read_all(path);
  const auto places = metadata_bytes(whole.size(), open_image_file(InputFile(path)), kSealBytes);
  std::mt19937 random(1);
  for (int i = 0; i < kFlips; ++i) {
    std::string damaged = whole;
    damaged[places[random() % places.size()]] ^= static_cast<char>(1 << random() % 8);
    write_all(path, damaged);
    EXPECT_ERROR(ErrorCode::data_damaged, "metadata of the file is damaged", open_image_set(path));
  }
}

TEST(DamagedFile, EveryFlipInTheSealIsAnErrorOrHarmless) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_set(path);
  const std::string whole = read_all(path);
  for (std::size_t i = 0; i < 96; ++i) {
    std::string damaged = whole;
    damaged[i] ^= 0x10;
    write_all(path, damaged);
    // Without its magic the file is a foreign one; behind byte 80 the block is empty.
    EXPECT_EQ(reads(path), i < 16 || i >= 80) << "byte " << i;
  }
}

TEST(DamagedFile, FlipsInAForeignFileNeverCrash) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_set(path);
  const ImageFile layout = open_image_file(InputFile(path));
  std::string whole = read_all(path);
  whole[0] = 'x';  // no seal any more: HDF5 itself has to find out
  const auto places = metadata_bytes(whole.size(), layout, kSealBytes);
  std::mt19937 random(2);
  int n_errors = 0;
  for (int i = 0; i < kFlips; ++i) {
    std::string damaged = whole;
    damaged[places[random() % places.size()]] ^= static_cast<char>(1 << random() % 8);
    write_all(path, damaged);
    n_errors += !reads(path);
  }
  EXPECT_GT(n_errors, 0);
  write_all(path, whole);
  EXPECT_TRUE(reads(path));
}

TEST(LimitedChild, TellsHowTheCheckEnded) {
  EXPECT_TRUE(run_in_limited_child([] {}).good);

  const ChildVerdict thrown = run_in_limited_child([] { fail(ErrorCode::data_empty, "nothing in it"); });
  EXPECT_FALSE(thrown.good);
  ASSERT_TRUE(thrown.code.has_value());
  EXPECT_EQ(*thrown.code, ErrorCode::data_empty);
  EXPECT_EQ(thrown.sentence, "nothing in it");

  const ChildVerdict crashed = run_in_limited_child([] { std::raise(SIGSEGV); });
  EXPECT_FALSE(crashed.good);
  EXPECT_FALSE(crashed.code.has_value());
  EXPECT_NE(crashed.sentence.find("crashed"), std::string::npos) << crashed.sentence;

  // More address space than the child may take: malloc fails, whatever memory the machine has. The pointer is
  // volatile so that the compiler keeps the call.
  const ChildVerdict greedy = run_in_limited_child([] {
    void* volatile block = std::malloc(std::size_t{8} << 30);
    require(block != nullptr, ErrorCode::out_of_memory, "refused");
  });
  EXPECT_FALSE(greedy.good);
}

}  // namespace
}  // namespace lockstep::data
