#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "lockstep/error.h"

namespace lockstep {
namespace {

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep_file_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::size_t n_files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(directory_), std::filesystem::directory_iterator()));
  }

  std::filesystem::path directory_;
};

TEST_F(FileTest, ReplacesTheWholeContentAndLeavesNothingElse) {
  const std::string path = directory_ / "status";
  replace_file(path, "a longer first content\n");
  replace_file(path, "done\n");
  EXPECT_EQ(read_file(path), "done\n");
  EXPECT_EQ(n_files(), 1u);
}

TEST_F(FileTest, NeitherReplacesNorWaitsForAPipe) {
  const std::string path = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THROW(replace_file(path, "done\n"), Error);
  EXPECT_TRUE(std::filesystem::is_fifo(path));
  EXPECT_THROW(open_regular_file(path, ErrorCode::cannot_open), Error);  // without blocking
  EXPECT_THROW(replace_file(directory_, "done\n"), Error);
  EXPECT_EQ(n_files(), 1u);
}

TEST_F(FileTest, ReadsOnlyFilesAndPipesThatAreOpen) {
  const std::string path = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  for (const std::string& wrong : {path, directory_.string(), std::string("/dev/zero")}) {
    try {
      read_file(wrong);
      FAIL() << "must throw";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("is not a regular file"), std::string::npos) << e.what();
    }
  }
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string reading = "/dev/fd/" + std::to_string(ends[0]);
  EXPECT_THROW(open_regular_file(reading), Error);  // a reader at offsets cannot use it
  write_fully(ends[1], "as of a shell", reading);
  ::close(ends[1]);
  EXPECT_EQ(read_file(reading), "as of a shell");
  ::close(ends[0]);
}

TEST_F(FileTest, ReadsMoreThanOneBuffer) {
  const std::string path = directory_ / "long";
  const std::string content(200000, 'x');
  replace_file(path, content);
  EXPECT_EQ(read_file(path), content);
}

TEST_F(FileTest, FailureNamesTheFileAndKeepsTheOldOne) {
  const std::string path = directory_ / "taken";
  std::filesystem::create_directories(path + "/inside");  // a directory cannot be replaced by a file
  try {
    replace_file(path, "x");
    FAIL() << "must throw";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::system_call);
    EXPECT_NE(std::string(e.what()).find(path), std::string::npos) << e.what();
  }
  EXPECT_TRUE(std::filesystem::is_directory(path + "/inside"));
  EXPECT_EQ(n_files(), 1u);
  EXPECT_THROW(read_file(directory_ / "absent"), Error);
}

TEST_F(FileTest, APendingFileAppearsOnlyWhenItIsPublished) {
  const std::string path = directory_ / "whole";
  for (const PartialName name : {PartialName::fixed, PartialName::of_process}) {
    std::filesystem::remove(path);
    {
      PendingFile abandoned(path, name);
      write_fully(abandoned.create().get(), "half", abandoned.partial_path());
      EXPECT_TRUE(is_partial_name(abandoned.partial_path()));
      EXPECT_EQ(abandoned.partial_path() == partial_name(path), name == PartialName::fixed);
      EXPECT_EQ(n_files(), 1u);
    }
    EXPECT_EQ(n_files(), 0u);
    PendingFile pending(path, name);
    write_fully(pending.create().get(), "complete", pending.partial_path());
    EXPECT_FALSE(std::filesystem::exists(path));
    pending.publish();
    EXPECT_EQ(read_file(path), "complete");
    EXPECT_EQ(n_files(), 1u);
  }
}

TEST_F(FileTest, ANameMayHaveTheGreatestLength) {
  for (const std::size_t length : {240u, 250u, 255u}) {
    const std::string path = directory_ / std::string(length, 'n'), folder = directory_ / std::string(length, 'f');
    replace_file(path, "complete");
    EXPECT_EQ(read_file(path), "complete");
    EXPECT_TRUE(create_unnamed_file(path));
    PendingDirectory(folder).publish();
    PendingDirectory(folder).publish();  // replaces it
    EXPECT_TRUE(std::filesystem::is_directory(folder));
  }
  EXPECT_EQ(n_files(), 6u);
  EXPECT_NE(partial_name(std::string(255, 'n')), partial_name(std::string(255, 'm')));
  testing::internal::CaptureStderr();
  EXPECT_THROW(replace_file(directory_ / std::string(256, 'n'), "complete"), Error);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(FileTest, ReadsAndWritesAtOffsets) {
  const std::string path = directory_ / "offsets";
  const Descriptor file = open_file(path, O_RDWR | O_CREAT);
  write_at(file, path, std::as_bytes(std::span("abcdef", 6)), 2);
  EXPECT_EQ(size_bytes(file, path), 8u);
  std::array<std::byte, 4> bytes{};
  read_at(file, path, bytes, 3);
  EXPECT_EQ(std::memcmp(bytes.data(), "bcde", 4), 0);
  EXPECT_EQ(try_read_at(file, bytes, 6), ReadOutcome::end_of_file);
  try {
    read_at(file, path, bytes, 6, ErrorCode::checkpoint_damaged);
    FAIL() << "must throw";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::checkpoint_damaged);
    EXPECT_NE(std::string(e.what()).find(path + " ends before byte 10"), std::string::npos) << e.what();
  }
  set_length(file, path, 3);
  EXPECT_EQ(size_bytes(file, path), 3u);
}

TEST_F(FileTest, RejectsAFolder) {
  try {
    open_regular_file(directory_, ErrorCode::cannot_open);
    FAIL() << "must throw";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::cannot_open);
    EXPECT_NE(std::string(e.what()).find("is not a regular file"), std::string::npos) << e.what();
  }
}

TEST_F(FileTest, ABrokenLinkIsNamedWithItsTarget) {
  const std::string link = directory_.string() + "/best",
                    expected = link + " is a link to step-9.h5, which does not exist";
  std::filesystem::create_symlink("step-9.h5", link);
  EXPECT_EQ(broken_link_text(link), expected);
  EXPECT_EQ(broken_link_text(link + "/checkpoints"), expected);
  EXPECT_EQ(broken_link_text(directory_.string() + "/none"), "");
  std::filesystem::create_symlink("best", directory_.string() + "/latest");
  EXPECT_NE(broken_link_text(directory_.string() + "/latest").find("latest is a link to best"), std::string::npos);
  try {
    open_regular_file(link, ErrorCode::cannot_open);
    FAIL() << "must throw";
  } catch (const Error& e) {
    EXPECT_EQ(e.what(), "cannot open " + link + ": " + expected);
  }
  replace_file(directory_.string() + "/step-9.h5", "content");
  EXPECT_EQ(broken_link_text(directory_.string() + "/latest"), "");
}

}  // namespace
}  // namespace lockstep
