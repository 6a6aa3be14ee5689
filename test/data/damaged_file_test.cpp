// Damaged metadata: whichever byte is wrong, opening the file throws an Error or succeeds. It never crashes, and never
// returns a wrong image.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <random>
#include <vector>

#include "base/signals.h"
#include "data/data_file.h"
#include "data/image_set.h"
#include "data/user_block.h"
#include "test/data/files.h"
#include "test/support/emulator.h"
#include "test/support/program.h"

namespace lockstep::data {
namespace {

/// Contiguous images, and images in 8 chunks without gaps.
constexpr Placement kPlacements[] = {kDefaultPlacement, {.alignment_bytes = 0, .chunk_bytes = 180}};

constexpr int kAlive = 100;  // the descriptor that a process keeps open while it lives

/// Positions outside of images and labels.
std::vector<std::size_t> metadata_bytes(std::size_t file_bytes, const ImageFile& layout, std::size_t from) {
  std::vector<std::size_t> out;
  for (std::size_t i = from; i < file_bytes; ++i)
    if (std::ranges::none_of(layout.images.offsets,
                             [&](std::uint64_t o) { return i >= o && i < o + layout.images.chunk_bytes; }) &&
        !(i >= layout.labels.offset && i < layout.labels.end()))
      out.push_back(i);
  return out;
}

/// True if the file opened, all of it was read, and no byte came from outside of the images.
bool reads(const std::string& path) {
  try {
    const auto set = open_image_set(path);
    std::vector<std::uint8_t> image(set->info().image_bytes());
    std::int32_t label = 0;
    for (std::int64_t i = 0; i < set->info().n_samples; ++i) set->read_image(i, 0, image, label);
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(DamagedFile, EveryFlipInTheMetadataIsDetectedBeforeHdf5OpensTheFile) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  std::mt19937 random(1);
  for (const Placement& placement : kPlacements) {
    write_test_set(path, {}, {}, placement);
    const std::string whole = read_all(path);
    const auto places = metadata_bytes(whole.size(), open_image_file(InputFile(path)), hdf5::kUserBlockBytes);
    for (int i = 0; i < n_flips(); ++i) {
      std::string damaged = whole;
      damaged[places[random() % places.size()]] ^= static_cast<char>(1 << random() % 8);
      write_all(path, damaged);
      EXPECT_ERROR(ErrorCode::data_damaged, "metadata of the file is damaged", open_image_set(path));
    }
  }
}

TEST(DamagedFile, EveryFlipInTheUserBlockIsAnErrorOrHarmless) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  for (const Placement& placement : kPlacements) {
    write_test_set(path, {}, {}, placement);
    const std::size_t block_bytes = open_image_file(InputFile(path)).images.chunked() ? 232 : 80;
    const std::string whole = read_all(path);
    for (std::size_t i = 0; i < block_bytes + 16; ++i) {
      std::string damaged = whole;
      damaged[i] ^= 0x10;
      write_all(path, damaged);
      EXPECT_EQ(reads(path), i >= block_bytes) << "byte " << i;  // those after the block's own checksum are unused
    }
  }
}

// Whoever changes a file on purpose corrects its checksums, too. HDF5 1.10.8 crashes on some of these files.
TEST(DamagedFile, ForgedChecksumsDoNotCrashThisProcess) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  std::mt19937 random(1);
  for (const Placement& placement : kPlacements) {
    write_test_set(path, {}, {}, placement);
    const ImageFile layout = open_image_file(InputFile(path));
    const std::string whole = read_all(path);
    std::vector<std::size_t> places = metadata_bytes(whole.size(), layout, hdf5::kUserBlockBytes);
    std::erase_if(places, [&](std::size_t i) { return whole[i] == 0; });
    for (int i = 0; i < n_flips() / 4; ++i) {  // HDF5 also hangs on some, for 30 s
      std::string forged = whole;
      for (int n = 0; n < 2; ++n)
        forged[places[random() % places.size()] + random() % 2] ^= static_cast<char>(1 << random() % 8);
      write_all(path, forged);
      write_user_block(path, {layout.images, layout.labels});
      reads(path);
    }
  }
}

// A disk may also have lost the whole block.
TEST(DamagedFile, AnImportWithoutItsUserBlockIsDamaged) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  for (const Placement& placement : kPlacements) {
    write_test_set(path, {}, {}, placement);
    overwrite(path, 0, std::vector<std::byte>(hdf5::kUserBlockBytes));
    EXPECT_ERROR(ErrorCode::data_damaged, "damaged in its user block", open_image_set(path));
  }
}

// Alignment leaves space between the chunks, and HDF5 1.10.8 stores the names of 444 classes there.
TEST(DamagedFile, MetadataBetweenChunksIsCheckedToo) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_set(path, {.n_samples = 183, .height = 33, .width = 10, .classes = 444}, {},
                 {.alignment_bytes = 32768, .chunk_bytes = 40645});
  const ImageFile layout = open_image_file(InputFile(path));
  ASSERT_EQ(layout.images.offsets.size(), 5u);
  const std::string whole = read_all(path);
  std::vector<std::size_t> used;
  for (const std::uint64_t offset : layout.images.offsets)
    for (std::size_t i = offset + layout.images.chunk_bytes; i < whole.size() && i % 32768 != 0; ++i)
      if (whole[i] != 0) used.push_back(i);
  for (std::size_t i = 0; i < used.size(); i += 97) {
    std::string damaged = whole;
    damaged[used[i]] ^= 1;
    write_all(path, damaged);
    EXPECT_ERROR(ErrorCode::data_damaged, "metadata of the file is damaged", open_image_set(path));
  }
}

TEST(DamagedFile, ATruncatedChunkedFileIsReported) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_set(path, {}, {}, kPlacements[1]);
  const std::string whole = read_all(path);
  for (std::size_t size = 80; size < whole.size(); size += size < 240 ? 1 : 61) {
    write_all(path, whole.substr(0, size));
    EXPECT_ERROR(ErrorCode::data_damaged, "is truncated", open_image_set(path));
  }
}

// The user block and the metadata are each valid, but they belong to different files.
TEST(DamagedFile, AUserBlockOfOtherChunksIsRejected) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_set(path, {}, {}, kPlacements[1]);
  const ImageFile layout = open_image_file(InputFile(path));
  const auto refused = [&](const StoredBytes& images) {
    write_user_block(path, {images, layout.labels});
    EXPECT_ERROR(ErrorCode::data_damaged, "disagree about the position of the images", open_image_set(path));
  };
  StoredBytes images = layout.images;
  images.offsets.pop_back();
  images.size_bytes = 7 * 180;
  refused(images);
  refused({1380, 1380, {layout.images.offsets[1]}});
  images = StoredBytes::in_a_row(1380, 180, layout.images.offsets[0], layout.images.offsets[1] + 1, 180);
  refused(images);
}

TEST(DamagedFile, FlipsInAForeignFileNeverCrash) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  std::mt19937 random(2);
  for (const Placement& placement : kPlacements) {
    write_test_set(path, {}, {}, placement);
    remove_user_block(path);  // without it, HDF5 itself has to detect the damage
    const std::string whole = read_all(path);
    const auto places = metadata_bytes(whole.size(), open_image_file(InputFile(path)), 0);
    int n_errors = 0;
    for (int i = 0; i < n_flips(); ++i) {
      std::string damaged = whole;
      damaged[places[random() % places.size()]] ^= static_cast<char>(1 << random() % 8);
      write_all(path, damaged);
      n_errors += !reads(path);
    }
    EXPECT_GT(n_errors, 0);
    write_all(path, whole);
    EXPECT_TRUE(reads(path));
  }
}

// HDF5 may overwrite memory without a crash, and a crash may follow in another process that has other memory. The file
// is therefore read in the child alone, and its layout is sent.
TEST(LimitedChild, ReturnsWhatWasReadThere) {
  std::string bytes(1 << 20, '\0');  // more than a pipe holds
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i % 251);
  bool is_read_here = false;
  const ChildVerdict verdict = run_in_limited_child([&] {
    is_read_here = true;
    return bytes;
  });
  EXPECT_TRUE(verdict.good);
  EXPECT_EQ(verdict.result, bytes);
  EXPECT_FALSE(is_read_here);
  EXPECT_EQ(run_in_limited_child([] { return std::string(); }).result, "");
  EXPECT_TRUE(run_in_limited_child([] { return std::string(); }).good);
}

// A child whose memory was overwritten may send anything.
TEST(LimitedChild, MustSendALayout) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_test_set(path);
  const InputFile file(path);
  const std::string bytes = bytes_of_layout(open_image_file(file));
  EXPECT_TRUE(layout_of<ImageFile>(file, bytes) == open_image_file(file));
  for (const std::string& wrong : {std::string(), bytes.substr(0, bytes.size() / 2), bytes + "x", std::string("\x80")})
    EXPECT_ERROR(ErrorCode::data_format, "the library overwrote memory", layout_of<ImageFile>(file, wrong));
  EXPECT_ERROR(ErrorCode::data_format, "the library overwrote memory", layout_of<TextFile>(file, bytes));
}

TEST(LimitedChild, ReportsHowTheReadingEnded) {
  const ChildVerdict thrown =
      run_in_limited_child([]() -> std::string { fail(ErrorCode::data_source, "nothing in it"); });
  EXPECT_FALSE(thrown.good);
  ASSERT_TRUE(thrown.code.has_value());
  EXPECT_EQ(*thrown.code, ErrorCode::data_source);
  EXPECT_EQ(thrown.sentence, "nothing in it");

  const ChildVerdict crashed = run_in_limited_child([] {
    std::raise(SIGSEGV);
    return std::string();
  });
  EXPECT_FALSE(crashed.good);
  EXPECT_FALSE(crashed.code.has_value());
  EXPECT_NE(crashed.sentence.find("crashed"), std::string::npos) << crashed.sentence;
}

/// Opens a file forever. `PROGRAM --slow-file 1` ends by itself when a signal asks to stop, as imports do.
const test::Role slow_file("slow-file", [](int, char** argv) {
  if (argv[2] == std::string("1")) {
    catch_stop_signals();
    stop_anywhere();
  }
  try {
    run_in_limited_child([] {
      write_fully(kAlive, "x", "the pipe to the test");
      while (true) ::pause();
      return std::string();
    });
  } catch (const StoppedBySignal&) {
    return kExitStopped;
  }
  return kExitFailed;
});

TEST(LimitedChild, EndsWithTheProcessThatASignalStops) {
  for (const char* catches : {"0", "1"}) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t process = ::fork();
    if (process == 0) {
      ::dup2(ends[1], kAlive);
      ::close(ends[0]);
      ::close(ends[1]);
      ::execl(test::self().c_str(), "test", "--slow-file", catches, nullptr);
      ::_exit(1);
    }
    ::close(ends[1]);
    char byte = 0;
    ASSERT_EQ(::read(ends[0], &byte, 1), 1);
    ::kill(process, SIGTERM);
    EXPECT_EQ(::read(ends[0], &byte, 1), 0);  // neither process has the pipe open any more
    int status = 0;
    ::waitpid(process, &status, 0);
    EXPECT_TRUE(*catches == '1' ? WEXITSTATUS(status) == kExitStopped : WTERMSIG(status) == SIGTERM) << status;
    ::close(ends[0]);
  }
}

TEST(LimitedChild, HasLessMemoryThanTheMachine) {
  if (test::in_emulator()) GTEST_SKIP() << "qemu ignores limits of memory";
  // The child requests more address space than it may use: malloc fails, whatever memory the machine has. The pointer
  // is volatile so that the compiler keeps the call.
  const ChildVerdict greedy = run_in_limited_child([] {
    void* volatile block = std::malloc(std::size_t{8} << 30);
    require(block != nullptr, ErrorCode::out_of_memory, "refused");
    return std::string();
  });
  EXPECT_FALSE(greedy.good);
}

}  // namespace
}  // namespace lockstep::data
