// What the driver's library tells of a GPU, by one of the tests' own (fake_nvml.cpp): this program starts itself again
// with it on LD_LIBRARY_PATH.
#include "kernels/cuda/base/nvml.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "comm/world.h"
#include "train/usage_log.h"

namespace lockstep::cuda {
namespace {

constexpr const char* kGpu = "0000:18:00.0";

TEST(Nvml, TellsMemoryAndUtilisation) {
  const Nvml* nvml = Nvml::get();
  ASSERT_NE(nvml, nullptr) << Nvml::problem();
  EXPECT_EQ(Nvml::problem(), "");
  EXPECT_EQ(nvml->driver_version(), "580.65.06");
  const DeviceUsage usage = nvml->usage(kGpu);
  EXPECT_EQ(usage.memory_bytes, std::size_t{30} << 30);
  EXPECT_EQ(usage.memory_total_bytes, std::size_t{80} << 30);
  EXPECT_EQ(usage.index, 2);
  EXPECT_DOUBLE_EQ(usage.utilisation.value_or(-1), 0.87);
  EXPECT_EQ(nvml->nvlinks(kGpu), 4);
}

TEST(Nvml, WhatIsNotToldIsEmpty) {
  const Nvml* nvml = Nvml::get();
  ASSERT_NE(nvml, nullptr);
  EXPECT_FALSE(nvml->usage("0000:99:00.0").memory_bytes);
  EXPECT_FALSE(nvml->nvlinks("0000:99:00.0"));
  ::setenv("FAKE_NVML_MIG", "1", 1);
  EXPECT_TRUE(nvml->usage(kGpu).memory_bytes);
  EXPECT_FALSE(nvml->usage(kGpu).utilisation);
  ::unsetenv("FAKE_NVML_MIG");
}

TEST(Nvml, IsWrittenDownBesideARun) {
  const Nvml* nvml = Nvml::get();
  ASSERT_NE(nvml, nullptr);
  const auto folder = std::filesystem::temp_directory_path() / ("usage." + std::to_string(::getpid()));
  const auto world = comm::single_world();
  const auto file = folder / ("gpu_memory_log_" + world->host() + ".csv");
  {
    const train::UsageLog log(*world, {.directory = folder.string(),
                                       .interval_seconds = 0.1,
                                       .pci_bus = kGpu,
                                       .usage_of = [&](const std::string& pci_bus) { return nvml->usage(pci_bus); }});
    for (int i = 0; i < 3000 && !std::filesystem::exists(file); ++i) ::usleep(10000);
  }
  std::ifstream in(file);
  std::string header, line;
  std::getline(in, header);
  std::getline(in, line);
  EXPECT_EQ(line.substr(std::min(line.find(','), line.size())), ",2,30720,81920,87") << header;
  std::filesystem::remove_all(folder);
}

// In processes of their own, since a library is loaded once.
int without_library() {
  if (Nvml::get() == nullptr && Nvml::problem().find("libnvidia-ml.so.1 cannot be loaded") == 0) return 0;
  return Nvml::get() != nullptr ? 77 : 1;  // this machine has one
}
int that_refuses() { return Nvml::get() == nullptr && Nvml::problem() == "NVML says: Driver Not Loaded" ? 0 : 1; }

int status_of(const std::string& environment, const std::string& argument) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const int status = std::system(("env " + environment + " " + self + " " + argument).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Nvml, MayBeMissing) {
  const int status = status_of("-u LD_LIBRARY_PATH", "--without-library");
  EXPECT_TRUE(status == 0 || status == 77) << status;
}
TEST(Nvml, MayRefuse) { EXPECT_EQ(status_of("FAKE_NVML_REFUSES=1", "--that-refuses"), 0); }

}  // namespace
}  // namespace lockstep::cuda

int main(int argc, char** argv) {
  using namespace lockstep::cuda;  // NOLINT
  const std::string argument = argc > 1 ? argv[1] : "";
  if (argument == "--without-library") return without_library();
  if (argument == "--that-refuses") return that_refuses();
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  const auto folder = std::filesystem::temp_directory_path() / ("nvml." + std::to_string(::getpid()));
  if (std::getenv("NVML_TEST_HAS_LIBRARY") == nullptr) {
    std::filesystem::create_directories(folder);
    std::filesystem::create_symlink(self.parent_path() / "fake_nvml.so", folder / "libnvidia-ml.so.1");
    ::setenv("LD_LIBRARY_PATH", folder.c_str(), 1);
    ::setenv("NVML_TEST_HAS_LIBRARY", "1", 1);
    ::execv(self.c_str(), argv);
    return 1;
  }
  ::testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  std::filesystem::remove_all(folder);
  return status;
}
