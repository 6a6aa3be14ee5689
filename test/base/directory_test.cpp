// Directories that appear atomically, also in place of an existing one.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class DirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "lockstep_directory_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    parent_ = pattern;
  }
  void TearDown() override { fs::remove_all(parent_); }
  std::size_t n_entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(parent_), fs::directory_iterator()));
  }
  void publish(const std::string& file) const {
    PendingDirectory pending(path());
    replace_file(pending.partial_path() + "/" + file, "complete");
    pending.publish();
    EXPECT_EQ(read_file(path() + "/" + file), "complete");
  }
  std::string path() const { return parent_ / "model"; }

  fs::path parent_;
};

TEST_F(DirectoryTest, AppearsOnlyWhenItIsPublished) {
  {
    PendingDirectory abandoned(path());
    replace_file(abandoned.partial_path() + "/half", "half");
    EXPECT_FALSE(fs::exists(path()));
    EXPECT_EQ(n_entries(), 1u);
  }
  EXPECT_EQ(n_entries(), 0u);
  publish("file");
  EXPECT_EQ(n_entries(), 1u);
}

TEST_F(DirectoryTest, ReplacesAnotherOneAsAWhole) {
  publish("first");
  {
    PendingDirectory abandoned(path());
    replace_file(abandoned.partial_path() + "/half", "half");
  }
  EXPECT_TRUE(fs::exists(path() + "/first"));
  publish("second");
  EXPECT_FALSE(fs::exists(path() + "/first"));
  EXPECT_EQ(n_entries(), 1u);
}

TEST_F(DirectoryTest, RemovesWhatACrashLeft) {
  for (const char* left : {"model.partial", "model.old.partial"}) {
    fs::create_directory(parent_ / left);
    replace_file(parent_ / left / "half", "half");
  }
  publish("file");
  EXPECT_FALSE(fs::exists(path() + "/half"));
  EXPECT_EQ(n_entries(), 1u);
}

TEST_F(DirectoryTest, DoesNotReplaceAFile) {
  replace_file(path(), "content");
  EXPECT_THROW(PendingDirectory{path()}, Error);
  EXPECT_THROW(PendingDirectory{parent_ / "none" / "model"}, Error);
  EXPECT_EQ(read_file(path()), "content");
  EXPECT_EQ(n_entries(), 1u);
}

}  // namespace
}  // namespace lockstep
