// Reading the network from NCCL's log, in the formats of its releases.
#include "comm/nccl_log.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

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

TEST(NcclLog, RedirectsLogAndReadsIt) {
  ::unsetenv("NCCL_DEBUG");
  ::unsetenv("NCCL_DEBUG_FILE");
  std::string path;
  {
    const NcclLog log;
    EXPECT_STREQ(std::getenv("NCCL_DEBUG"), "INFO");
    path = std::getenv("NCCL_DEBUG_FILE");
    std::ofstream(path) << "n:7:9 [0] NCCL INFO Using network IB\n";
    EXPECT_EQ(log.network(), "network IB");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(std::getenv("NCCL_DEBUG"), nullptr);
}

TEST(NcclLog, KeepsSettingsOfUser) {
  ::setenv("NCCL_DEBUG", "WARN", 1);
  {
    const NcclLog log;
    EXPECT_STREQ(std::getenv("NCCL_DEBUG"), "WARN");
    EXPECT_EQ(std::getenv("NCCL_DEBUG_FILE"), nullptr);
    EXPECT_EQ(log.network(), "");
  }
  EXPECT_STREQ(std::getenv("NCCL_DEBUG"), "WARN");
  ::unsetenv("NCCL_DEBUG");
}

}  // namespace
}  // namespace lockstep::comm
