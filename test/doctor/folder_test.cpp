// The verdicts on file systems, derived from numbers, and measurements in a folder of this machine.
#include "doctor/folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "comm/world.h"
#include "doctor/thresholds.h"
#include "test/doctor/support.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;
using Verdicts = std::vector<std::string>;

FolderFacts good() {
  return {.path = "/scratch",
          .problem = "",
          .kind = "Lustre",
          .striping = "4 stripes of 1 MiB",
          .is_writable = true,
          .write_rate = 800e6,
          .sync_seconds = 0.01,
          .read_rate = 1e9,
          .rename_seconds = 0.001,
          .metadata_rate = 900,
          .free_bytes = 1e12,
          .quota_used_bytes = 1e9,
          .quota_bytes = 1e11,
          .lock_problem = ""};
}

/// Two nodes with one rank each; `change` modifies what the second one measured.
template <typename Change>
std::vector<Check> check_with(const Change& change, FolderUse use = FolderUse::run) {
  std::vector<FolderFacts> folders(2, good());
  change(folders[1]);
  const auto checks = check_folder(places_on(2, 1), folders, use);
  EXPECT_EQ(without_remedy(checks), Verdicts());
  return checks;
}
template <typename Change>
std::string second_with(const std::string& name, const Change& change) {
  const Verdicts list = verdicts(check_with(change), name);
  return list.size() == 2 ? list[1] : "there are not two checks of this name";
}

TEST(FolderChecks, PassForAGoodFileSystem) {
  for (const Check& check : check_with([](FolderFacts&) {})) EXPECT_EQ(check.status, Status::pass) << check.name;
}
TEST(FolderChecks, LimitTheRates) {
  EXPECT_EQ(second_with("run: write and sync", [](FolderFacts& f) { f.write_rate = 20e6; }), "warn node2");
  EXPECT_EQ(second_with("run: write and sync", [](FolderFacts& f) { f.write_rate = 5e6; }), "fail node2");
  EXPECT_EQ(second_with("run: read", [](FolderFacts& f) { f.read_rate = 5e6; }), "fail node2");
  EXPECT_EQ(second_with("run: metadata", [](FolderFacts& f) { f.metadata_rate = 2; }), "fail node2");
}
TEST(FolderChecks, LimitSpaceAndQuota) {
  EXPECT_EQ(second_with("run: free space", [](FolderFacts& f) { f.free_bytes = 1e9; }), "warn node2");
  EXPECT_EQ(second_with("run: free space", [](FolderFacts& f) { f.free_bytes = 1e6; }), "fail node2");
  EXPECT_EQ(second_with("run: quota", [](FolderFacts& f) { f.quota_used_bytes = 0.95e11; }), "warn node2");
  EXPECT_EQ(second_with("run: quota", [](FolderFacts& f) { f.quota_used_bytes = 1e11; }), "fail node2");
  EXPECT_EQ(second_with("run: quota", [](FolderFacts& f) { f.quota_bytes.reset(); }), "unknown node2");
}
TEST(FolderChecks, FailForProblems) {
  EXPECT_EQ(second_with("run: folder", [](FolderFacts& f) { f.problem = "Read-only file system"; }), "fail node2");
  EXPECT_EQ(second_with("run: folder", [](FolderFacts& f) { f.is_shared = false; }), "fail node2");
}
TEST(FolderChecks, FailForLocksThatDoNotHold) {
  EXPECT_EQ(verdicts(check_with([](FolderFacts&) {}), "run: locks across nodes"), Verdicts({"pass all nodes"}));
  EXPECT_EQ(verdicts(check_with([](FolderFacts& f) { f.lock_problem = "two nodes hold the same lock"; }),
                     "run: locks across nodes"),
            Verdicts({"fail node2"}));
}

TEST(Striping, IsReadFromTheAttributeOfLustre) {
  std::array<std::byte, 64> lov{};
  const std::uint32_t magic = 0x0BD10BD0, size = 4 << 20;
  const std::uint16_t count = 8;
  std::memcpy(lov.data(), &magic, 4);
  std::memcpy(lov.data() + 24, &size, 4);
  std::memcpy(lov.data() + 28, &count, 2);
  EXPECT_EQ(striping_in(lov), "8 stripes of 4 MiB");
  EXPECT_EQ(striping_in(std::span(lov).first(10)), "");
  lov[0] = std::byte{0};
  EXPECT_EQ(striping_in(lov), "");
}

class MeasuredFolder : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  FolderFacts measure(const fs::path& path, FolderUse use = FolderUse::run) {
    return measure_folder(*world_, path, use, Effort::quick);
  }
  const fs::path folder_ = fs::temp_directory_path() / ("doctor." + std::to_string(::getpid()));
  const std::unique_ptr<World> world_ = comm::single_world();
};

TEST_F(MeasuredFolder, HasRatesAndIsLeftEmpty) {
  const FolderFacts facts = measure(folder_);
  EXPECT_EQ(facts.problem, "");
  EXPECT_GT(facts.write_rate.value_or(0), 1e5);
  EXPECT_GT(facts.read_rate.value_or(0), 1e5);
  EXPECT_GT(facts.metadata_rate.value_or(0), 1);
  EXPECT_GT(facts.free_bytes.value_or(0), 1e6);
  EXPECT_TRUE(fs::is_empty(folder_));
}
TEST_F(MeasuredFolder, MayNotExistYet) {
  EXPECT_EQ(measure(folder_ / "runs/a").path, folder_);
  EXPECT_NE(measure(folder_ / "nowhere", FolderUse::data).problem, "");
}
TEST_F(MeasuredFolder, IsNotBelowAFile) {
  std::ofstream(folder_ / "file") << "x";
  EXPECT_EQ(measure(folder_ / "file/runs").problem, (folder_ / "file").string() + " is a file, not a folder");
  EXPECT_EQ(measure(folder_ / "file").problem, (folder_ / "file").string() + " is a file, not a folder");
}
TEST_F(MeasuredFolder, ReportsThatNothingCanBeWritten) {
  // Not even root may create files there.
  const FolderFacts facts = measure("/proc/self/fdinfo");
  EXPECT_NE(facts.problem.find("cannot create a folder in /proc"), std::string::npos) << facts.problem;
}

}  // namespace
}  // namespace lockstep::doctor
