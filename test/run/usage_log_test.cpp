// The log of the resource usage of processes and GPUs: its columns and their values, appending to a file, and write
// errors.
#include "run/usage_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"
#include "comm/world.h"
#include "test/support/emulator.h"

namespace lockstep::run {
namespace {

namespace fs = std::filesystem;
using Row = std::vector<std::string>;

constexpr const char* kProcessHeader = "time_unix,rank,pid,cpu_percent,rss_mib";
constexpr const char* kGpuHeader = "time_unix,gpu,memory_used_mib,memory_total_mib,utilisation_percent";

constexpr const char* kEmulated =
    "qemu's /proc/PID/stat lacks times and memory, and each thread reads a start of its own";

class UsageLogTest : public ::testing::Test {
 protected:
  UsageLogTest() {
    fs::remove_all(options_.directory);
    options_.interval_seconds = 0.1;
  }
  ~UsageLogTest() override { fs::remove_all(options_.directory); }

  std::string path(const std::string& name) const { return options_.directory + "/" + name + world_->host() + ".csv"; }

  /// Computes for `seconds`, and until the file has `n_lines` lines, since a loaded machine may be slow to start a
  /// thread.
  void log(double seconds, const std::string& file, std::size_t n_lines) {
    const UsageLog log(*world_, options_);
    const auto begin = Clock::now();
    volatile double sum = 0;
    while (seconds_since(begin) < seconds || (lines(file).size() < n_lines && seconds_since(begin) < 30))
      for (int i = 0; i < 100000; ++i) sum = sum + i;
  }

  static std::vector<std::string> lines(const std::string& file) {
    std::ifstream in(file);
    std::vector<std::string> all;
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }
  static std::vector<Row> rows(const std::string& file) {
    std::vector<Row> all;
    for (const std::string& line : lines(file)) {
      Row row(1);
      for (const char c : line) {
        if (c == ',')
          row.emplace_back();
        else
          row.back() += c;
      }
      all.push_back(row);
    }
    return all;
  }

  std::unique_ptr<World> world_ = comm::single_world();
  UsageLogOptions options_{
      .directory = (fs::temp_directory_path() / ("usage-log." + std::to_string(::getpid()))).string(),
      .interval_seconds = 0.1,
      .pci_bus = "",
      .usage_of = [](const std::string&) { return DeviceUsage{}; }};
};

TEST_F(UsageLogTest, WritesProcesses) {
  if (test::in_emulator()) GTEST_SKIP() << kEmulated;
  const std::string file = path("process_log_");
  const double before = unix_seconds();
  log(0.5, file, 4);
  const double after = unix_seconds();
  ASSERT_FALSE(lines(file).empty());
  EXPECT_EQ(lines(file)[0], kProcessHeader);
  const std::vector<Row> all = rows(file);
  ASSERT_GE(all.size(), 4u);
  double time = before - 0.001, cpu = 0;
  for (std::size_t i = 1; i < all.size(); ++i) {
    ASSERT_EQ(all[i].size(), 5u);
    EXPECT_GE(std::stod(all[i][0]), time);
    time = std::stod(all[i][0]);
    EXPECT_EQ(all[i][1], "0");
    EXPECT_EQ(all[i][2], std::to_string(::getpid()));
    cpu = std::max(cpu, std::stod(all[i][3]));
    EXPECT_GE(std::stod(all[i][3]), 0);
  }
  EXPECT_LE(time, after);
  EXPECT_GT(cpu, 0);  // one thread was always busy; 10 ms ticks make 0.1 s uncertain by about 10 %
  EXPECT_LE(cpu, 250);
  EXPECT_NEAR(std::stod(all.back()[4]), static_cast<double>(resident_memory_bytes()) / (1 << 20), 8);
  EXPECT_FALSE(fs::exists(path("gpu_memory_log_")));
}

TEST_F(UsageLogTest, WritesGpus) {
  options_.pci_bus = "0000:18:00.0";
  options_.usage_of = [](const std::string& pci_bus) {
    EXPECT_EQ(pci_bus, "0000:18:00.0");
    return DeviceUsage{.memory_bytes = std::size_t{26532} << 20,
                       .utilisation = 0.87,
                       .memory_total_bytes = std::size_t{81559} << 20,
                       .index = 3};
  };
  log(0.15, path("gpu_memory_log_"), 3);
  const std::vector<std::string> all = lines(path("gpu_memory_log_"));
  ASSERT_GE(all.size(), 3u);
  EXPECT_EQ(all[0], kGpuHeader);
  EXPECT_EQ(all[1].substr(all[1].find(',')), ",3,26532,81559,87");
}

TEST_F(UsageLogTest, UnknownFiguresAreEmpty) {
  options_.pci_bus = "0000:18:00.0";
  options_.usage_of = [](const std::string&) { return DeviceUsage{.memory_bytes = 5 << 20, .utilisation = {}}; };
  log(0, path("gpu_memory_log_"), 2);
  const std::vector<std::string> all = lines(path("gpu_memory_log_"));
  ASSERT_GE(all.size(), 2u);
  EXPECT_EQ(all[1].substr(all[1].find(',')), ",0,5,,");
}

TEST_F(UsageLogTest, ReportsAGpuThatTheDriverDoesNotReport) {
  options_.pci_bus = "0000:18:00.0";
  ::testing::internal::CaptureStderr();
  log(0, path("process_log_"), 2);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("does not report the GPU at 0000:18:00.0"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(path("gpu_memory_log_")));
}

TEST_F(UsageLogTest, ContinuesAFileWithoutALineThatWasLeftUnfinished) {
  if (test::in_emulator()) GTEST_SKIP() << kEmulated;
  fs::create_directories(options_.directory);
  const std::string file = path("process_log_");
  std::ofstream(file) << kProcessHeader << "\n1.000,0,1,2.0,3\n2.000,0,";
  log(0, file, 3);
  const std::vector<std::string> all = lines(file);
  ASSERT_GE(all.size(), 3u);
  EXPECT_EQ(all[1], "1.000,0,1,2.0,3");
  EXPECT_EQ(rows(file)[2].size(), 5u);
  EXPECT_GT(std::stod(rows(file)[2][0]), 1e9);
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_NE(all[i], kProcessHeader);
}

TEST_F(UsageLogTest, AFileWithATruncatedHeaderIsWrittenAnew) {
  if (test::in_emulator()) GTEST_SKIP() << kEmulated;
  fs::create_directories(options_.directory);
  std::ofstream(path("process_log_")) << "time_un";
  log(0, path("process_log_"), 2);
  EXPECT_EQ(lines(path("process_log_"))[0], kProcessHeader);
}

TEST_F(UsageLogTest, AWriteErrorIsReportedOnceAndEndsTheLog) {
  std::ofstream(options_.directory) << "a file instead of a folder";
  ::testing::internal::CaptureStderr();
  {
    const UsageLog log(*world_, options_);
    std::this_thread::sleep_for(std::chrono::milliseconds(350));
  }
  const std::string output = ::testing::internal::GetCapturedStderr();
  const auto at = output.find("log.usage_seconds: the log of memory use has ended: ");
  EXPECT_NE(at, std::string::npos) << output;
  EXPECT_EQ(output.find("log.usage_seconds", at + 1), std::string::npos) << output;
}

TEST(ProcessFacts, OfThisProcessAndOfAMissingOne) {
  if (test::in_emulator()) GTEST_SKIP() << kEmulated;
  const auto mine = process_facts(::getpid());
  ASSERT_TRUE(mine);
  EXPECT_GT(mine->start_ticks, 0u);
  EXPECT_GT(mine->age_seconds, 0);
  EXPECT_LT(mine->age_seconds, 3600);
  EXPECT_GE(mine->age_seconds * 64 + 1, mine->cpu_seconds);
  EXPECT_NEAR(static_cast<double>(mine->resident_bytes), static_cast<double>(resident_memory_bytes()), 8 << 20);
  EXPECT_FALSE(process_facts(0));
}

}  // namespace
}  // namespace lockstep::run
