// ranks: 2 3
// Processes that share only the file system save together: the file equals the one that a single rank writes, and a
// rank that fails makes all of them fail.
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "comm/world.h"
#include "test/checkpoint/support.h"
#include "test/comm/test_world.h"

namespace lockstep::checkpoint::test {
namespace {

using comm::test_world;

/// A directory whose path all ranks know; rank 0 creates and removes it.
class SharedDirectory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test_world->rank() == 0) scratch_ = std::make_unique<ScratchDirectory>();
    path_ = test_world->all_gather(scratch_ ? scratch_->path() : "")[0];
  }
  void TearDown() override { test_world->barrier(); }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  std::unique_ptr<ScratchDirectory> scratch_;
  std::string path_;
};

TEST_F(SharedDirectory, TheFileEqualsThatOfOneRank) {
  const auto tensors = small_model(true);
  save(file("all.h5"), tensors, small_state(), *test_world);
  if (test_world->rank() == 0) save_alone(file("one.h5"), tensors, small_state());
  test_world->barrier();
  EXPECT_TRUE(bytes_of_file(file("all.h5")) == bytes_of_file(file("one.h5")));
  EXPECT_TRUE(verify(file("all.h5")).good);

  std::vector<float> got;
  load(file("all.h5"), {{"/parameters/fc.bias", {10}, [&](auto values) { got.assign(values.begin(), values.end()); }}});
  ASSERT_EQ(got.size(), 10u);
  EXPECT_EQ(got[3], value_of("/parameters/fc.bias", 3));
}

TEST_F(SharedDirectory, AFailingRankFailsAll) {
  const int last = test_world->size() - 1;
  auto tensors = small_model();
  for (TensorSource& tensor : tensors)
    tensor.read = [&](std::span<float>) {
      if (test_world->rank() == last) fail(ErrorCode::library, "the copy from the device failed");
    };
  const std::string error = error_of([&] { save(file("a.h5"), tensors, small_state(), *test_world); });
  EXPECT_EQ(error, fmt::format("rank {} on {}: the copy from the device failed", last, test_world->host()));
  test_world->barrier();
  EXPECT_TRUE(std::filesystem::is_empty(path_));
}

}  // namespace
}  // namespace lockstep::checkpoint::test
