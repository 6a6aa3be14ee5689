// What the driver's library reports about a GPU. The library is a fake (fake_nvml.cpp) with the same name as the
// driver's: once it is loaded, the program finds it.
#include "kernels/cuda/base/nvml.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "comm/world.h"
#include "doctor/device.h"
#include "run/usage_log.h"
#include "test/support/program.h"

namespace lockstep::cuda {
namespace {

constexpr const char* kGpu = "0000:18:00.0";

bool load_fake() {
  return ::dlopen((test::folder_of_tests() / "kernels/fake_nvml.so").c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr;
}

class NvmlTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ASSERT_TRUE(load_fake()) << ::dlerror(); }
};

TEST_F(NvmlTest, ReportsMemoryAndUtilisation) {
  const Nvml* nvml = Nvml::get();
  ASSERT_NE(nvml, nullptr) << Nvml::problem();
  EXPECT_EQ(Nvml::problem(), "");
  EXPECT_EQ(nvml->driver_version(), "580.65.06");
  const DeviceUsage usage = nvml->usage(kGpu);
  EXPECT_EQ(usage.memory_bytes, std::size_t{30} << 30);
  EXPECT_EQ(usage.memory_total_bytes, std::size_t{80} << 30);
  EXPECT_EQ(usage.index, 2);
  EXPECT_DOUBLE_EQ(usage.utilisation.value_or(-1), 0.87);
  EXPECT_EQ(nvml->health(kGpu).nvlinks_active, 4);
}

/// The verdicts of `lockstep doctor` on the fake GPU. `variable` gives it a fault; empty: no fault.
std::string faults(const char* variable) {
  if (variable != nullptr) ::setenv(variable, "1", 1);
  doctor::DeviceFacts facts{.name = "a fake", .pci_bus = kGpu, .health = device_health(kGpu)};
  if (variable != nullptr) ::unsetenv(variable);
  std::string found;
  for (const doctor::Check& check : doctor::check_devices({{.host = "node1"}}, {facts}))
    if (check.status == doctor::Status::fail) found += check.name + ": " + check.value + "\n";
  return found;
}

TEST_F(NvmlTest, ReportsTheConditionOfADevice) {
  const DeviceHealth health = device_health(kGpu);
  EXPECT_EQ(health.driver, "580.65.06");
  EXPECT_DOUBLE_EQ(health.clock_mhz.value_or(0), 1755);
  EXPECT_DOUBLE_EQ(health.max_clock_mhz.value_or(0), 1980);
  EXPECT_EQ(health.throttle_reasons, std::vector<std::string>());  // idleness and the power limit do not count
  EXPECT_EQ(health.ecc_uncorrected, 0U);
  EXPECT_EQ(health.pcie_lanes, 16);
  EXPECT_EQ(health.pcie_generation, 5);
  EXPECT_EQ(health.nvlinks_active, 4);
  EXPECT_EQ(health.nvlinks_total, 6);
  EXPECT_EQ(health.free_memory_bytes, std::size_t{50} << 30);
}
TEST_F(NvmlTest, LetsDoctorFailForFaults) {
  const std::string always = "NVLink: 4 of 6 links active\n";
  EXPECT_EQ(faults(nullptr), always);
  EXPECT_EQ(faults("FAKE_NVML_THROTTLES"), "throttling: too hot (hardware limit), power brake\n" + always);
  EXPECT_EQ(faults("FAKE_NVML_ECC"), "ECC errors: 2 uncorrected, 1700 corrected\n" + always);
  EXPECT_EQ(faults("FAKE_NVML_NARROW"), "PCIe: generation 5 x8\n" + always);
}

TEST_F(NvmlTest, LeavesUnknownFiguresEmpty) {
  const Nvml* nvml = Nvml::get();
  ASSERT_NE(nvml, nullptr);
  EXPECT_FALSE(nvml->usage("0000:99:00.0").memory_bytes);
  EXPECT_FALSE(nvml->health("0000:99:00.0").nvlinks_active);
  ::setenv("FAKE_NVML_MIG", "1", 1);
  EXPECT_TRUE(nvml->usage(kGpu).memory_bytes);
  EXPECT_FALSE(nvml->usage(kGpu).utilisation);
  ::unsetenv("FAKE_NVML_MIG");
}

TEST_F(NvmlTest, IsLoggedDuringARun) {
  const Nvml* nvml = Nvml::get();
  ASSERT_NE(nvml, nullptr);
  const auto folder = std::filesystem::temp_directory_path() / ("usage." + std::to_string(::getpid()));
  const auto world = comm::single_world();
  const auto file = folder / ("gpu_memory_log_" + world->host() + ".csv");
  {
    const run::UsageLog log(*world, {.directory = folder.string(),
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

// In separate processes, since a library is loaded only once.
int without_library(int, char**) {
  if (Nvml::get() == nullptr && Nvml::problem().find("libnvidia-ml.so.1 cannot be loaded") == 0) return 0;
  return Nvml::get() != nullptr ? 77 : 1;  // this machine has the library
}
int that_refuses(int, char**) {
  return load_fake() && Nvml::get() == nullptr && Nvml::problem() == "NVML reports: Driver Not Loaded" ? 0 : 1;
}

const test::Role roles[] = {{"without-nvml", without_library}, {"nvml-that-refuses", that_refuses}};

int status_of(const std::string& environment, const std::string& argument) {
  const int status = std::system((environment + " " + test::self() + " " + argument).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(NvmlTest, MayBeMissing) {
  const int status = status_of("", "--without-nvml");
  EXPECT_TRUE(status == 0 || status == 77) << status;
}
TEST_F(NvmlTest, MayFailToStart) { EXPECT_EQ(status_of("FAKE_NVML_REFUSES=1", "--nvml-that-refuses"), 0); }

}  // namespace
}  // namespace lockstep::cuda
