#include "base/file.h"

#include <gtest/gtest.h>
#include <unistd.h>

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

}  // namespace
}  // namespace lockstep
