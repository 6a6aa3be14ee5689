// Reading the network's name from NCCL's log, in the formats of its releases.
#include "comm/nccl_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace lockstep::comm {
namespace {

TEST(NcclLog, FindsNetworkAndDevices) {
  EXPECT_EQ(network_in_nccl_log("node1:7:7 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.5<0>\n"
                                "node1:7:9 [0] NCCL INFO NET/IB : No device found.\n"
                                "node1:7:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.5<0> \n"
                                "node1:7:9 [0] NCCL INFO Using network Socket\n"),
            "network Socket ([0]eth0:10.0.0.5<0>)");
  EXPECT_EQ(network_in_nccl_log("n:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.5<0>\n"
                                "n:7:9 [0] NCCL INFO Initialized NET plugin IB\n"
                                "n:7:9 [0] NCCL INFO Assigned NET plugin IB to comm\n"),
            "network IB ([0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.5<0>)");
  EXPECT_EQ(network_in_nccl_log("n:7:9 [0] NCCL INFO Using network AWS Libfabric\n"), "network AWS Libfabric");
  EXPECT_EQ(network_in_nccl_log("n:7:9 [0] NCCL INFO comm 0x1 rank 0 nRanks 2\n"), "");
}

class NcclLogFile : public testing::Test {
 protected:
  NcclLogFile() {
    ::unsetenv("NCCL_DEBUG");
    ::unsetenv("NCCL_DEBUG_FILE");
    std::filesystem::create_directory(folder_);
  }
  ~NcclLogFile() override { std::filesystem::remove_all(folder_); }

  /// Like NCCL, which opens the file once.
  static void append(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::app) << text; }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("nccl-log-100%h." + std::to_string(::getpid()));
};

TEST_F(NcclLogFile, IsTemporaryWithoutAFolder) {
  std::string path;
  {
    const NcclLog log("", 0);
    EXPECT_STREQ(std::getenv("NCCL_DEBUG"), "INFO");
    path = std::getenv("NCCL_DEBUG_FILE");
    append(path, "n:7:9 [0] NCCL INFO Using network IB\n");
    EXPECT_EQ(log.network(), "network IB");
    EXPECT_EQ(log.kept_path(), "");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(std::getenv("NCCL_DEBUG"), nullptr);
}

TEST_F(NcclLogFile, IsKeptInItsFolderUntilItIsRemoved) {
  const std::string path = folder_ / "nccl.3.log";
  {
    NcclLog log(folder_, 3);
    EXPECT_EQ(log.kept_path(), path);
    const std::string set = std::getenv("NCCL_DEBUG_FILE");
    EXPECT_NE(set.find("100%%h"), std::string::npos) << "NCCL would write the name of the host instead of %h";
    log.restore_environment();
    EXPECT_EQ(std::getenv("NCCL_DEBUG_FILE"), nullptr);
    append(path, "n:7:9 [0] NCCL INFO Using network IB\n");
  }
  EXPECT_TRUE(std::filesystem::exists(path));
  NcclLog log(folder_, 3);
  log.remove();
  EXPECT_FALSE(std::filesystem::exists(path));
}

// NCCL overwrites the file when it starts again.
TEST_F(NcclLogFile, SurvivesTheStartOfTheResumedRun) {
  const std::string path = folder_ / "nccl.3.log", previous = folder_ / "nccl.3.previous.log";
  append(path, "n:7:9 [0] NCCL WARN a cable\n");
  NcclLog log(folder_, 3);
  EXPECT_FALSE(std::filesystem::exists(path));
  append(path, "n:7:9 [0] NCCL WARN a port\n");
  EXPECT_EQ(log.new_warnings(), std::vector<std::string>{"a port"});
  std::string line;
  std::getline(std::ifstream(previous), line);
  EXPECT_EQ(line, "n:7:9 [0] NCCL WARN a cable");
  log.remove();
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(NcclLogFile, HasWarnings) {
  NcclLog log(folder_, 0);
  using Warnings = std::vector<std::string>;
  EXPECT_EQ(log.new_warnings(), Warnings{}) << "there is no file yet";
  append(log.kept_path(),
         "n:7:9 [0] NCCL INFO comm 0x1 rank 0\n[2026-11-23 08:26:43] n:7:9 [0] net_ib.cc:12 NCCL WARN a");
  EXPECT_EQ(log.new_warnings(), Warnings{}) << "the line is not complete";
  append(log.kept_path(), " cable\nn:7:9 [0] NCCL WARN a port\n");
  EXPECT_EQ(log.new_warnings(), (Warnings{"a cable", "a port"}));
  EXPECT_EQ(log.new_warnings(), Warnings{}) << "they were returned before";
  append(log.kept_path(), "n:7:9 [0] NCCL WARN a rank\n");
  EXPECT_EQ(log.new_warnings(), Warnings{"a rank"});
}

TEST(NcclLog, KeepsSettingsOfUser) {
  ::setenv("NCCL_DEBUG", "WARN", 1);
  {
    const NcclLog log("", 0);
    EXPECT_STREQ(std::getenv("NCCL_DEBUG"), "WARN");
    EXPECT_EQ(std::getenv("NCCL_DEBUG_FILE"), nullptr);
    EXPECT_EQ(log.network(), "");
  }
  EXPECT_STREQ(std::getenv("NCCL_DEBUG"), "WARN");
  ::unsetenv("NCCL_DEBUG");
}

}  // namespace
}  // namespace lockstep::comm
