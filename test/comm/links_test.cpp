// The links between the devices of a node, and its networks, from what the system reports.
#include "comm/links.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace lockstep::comm {
namespace {

TEST(Links, AreReadFromTheFilesOfLinux) {
  namespace fs = std::filesystem;
  const fs::path root = fs::temp_directory_path() / ("interfaces." + std::to_string(::getpid()));
  const auto write = [&](const std::string& path, const std::string& content) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << content << '\n';
  };
  for (const char* name : {"lo", "eth0", "hsn0", "down0"}) {
    const std::string folder = std::string("class/net/") + name;
    write(folder + "/operstate", std::string(name) == "down0" ? "down" : "up");
    write(folder + "/type", "1");
    write(folder + "/speed", "25000");
    write(folder + "/statistics/tx_bytes", "123");
  }
  write("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  write("class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)");
  write("class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand");
  write("class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "10");
  const auto found = interfaces_in(root);
  const std::string fastest = fastest_network(root);
  fs::remove_all(root);
  EXPECT_EQ(fastest, ", fastest network: mlx5_0, InfiniBand, 200 Gbit/s");
  EXPECT_EQ(fastest_network(root), "");
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].kind, "Ethernet");
  EXPECT_EQ(found[1].kind, "Slingshot");
  EXPECT_EQ(found[0].name, "eth0");
  EXPECT_DOUBLE_EQ(found[0].bytes_per_second, 25e9 / 8);
  EXPECT_DOUBLE_EQ(found[0].sent_bytes, 123);
  EXPECT_EQ(found[2].kind, "InfiniBand");
  EXPECT_DOUBLE_EQ(found[2].bytes_per_second, 25e9);
  EXPECT_DOUBLE_EQ(found[2].sent_bytes, 40);
}

TEST(Links, OfDevicesAreNvlinkOrPcie) {
  DeviceHealth gpu;
  EXPECT_EQ(device_link(gpu).name, "");
  gpu.pcie_generation = 4;
  gpu.pcie_lanes = 16;
  EXPECT_EQ(device_link(gpu).name, "PCIe");
  EXPECT_DOUBLE_EQ(device_link(gpu).bytes_per_second, 0.985e9 * 2 * 16);
  gpu.nvlinks_active = 18;
  EXPECT_EQ(device_link(gpu).name, "NVLink");
}

}  // namespace
}  // namespace lockstep::comm
