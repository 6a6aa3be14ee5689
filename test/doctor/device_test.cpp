// The verdicts on devices, derived from numbers, and the measurements of the CPU backend.
#include "doctor/device.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "comm/world.h"
#include "kernels/cpu/base/health.h"
#include "test/doctor/support.h"

namespace lockstep::doctor {
namespace {

using Verdicts = std::vector<std::string>;

DeviceFacts gpu() {
  DeviceFacts facts{.name = "H100", .pci_bus = "0000:18:00.0"};
  facts.health = {.driver = "580.65.06",
                  .clock_mhz = 1800,
                  .max_clock_mhz = 1980,
                  .throttle_reasons = std::vector<std::string>(),
                  .throttle_events = {},
                  .ecc_uncorrected = 0,
                  .ecc_corrected = 0,
                  .pcie_generation = 5,
                  .pcie_max_generation = 5,
                  .pcie_lanes = 16,
                  .pcie_max_lanes = 16,
                  .nvlinks_active = 18,
                  .nvlinks_total = 18,
                  .free_memory_bytes = 79'000'000'000,
                  .total_memory_bytes = 80'000'000'000};
  facts.xid_errors = std::vector<std::string>();
  facts.matmul_fp32 = 50e12;
  facts.memory_rate = 3e12;
  facts.product_hash = "aa";
  facts.n_products = 20;
  return facts;
}

/// Four equal devices; `change` then modifies the third.
template <typename Change>
std::vector<Check> check_with(const Change& change) {
  std::vector<DeviceFacts> devices(4, gpu());
  change(devices[2]);
  const std::vector<Check> checks = check_devices(places_on(2, 2), devices);
  EXPECT_EQ(without_remedy(checks), Verdicts());
  return checks;
}
template <typename Change>
std::string third_with(const char* check, const Change& change) {
  const Verdicts list = verdicts(check_with(change), check);
  EXPECT_EQ(list.size(), 4U) << check;
  for (std::size_t i = 0; i < list.size(); ++i) EXPECT_TRUE(i == 2 || list[i].starts_with("pass ")) << list[i];
  return list.size() > 2 ? list[2] : "";
}

TEST(DeviceChecks, PassForEqualDevices) {
  for (const Check& check : check_with([](DeviceFacts&) {})) EXPECT_EQ(check.status, Status::pass) << check.name;
}
TEST(DeviceChecks, CompareRatesWithTheMedian) {
  const auto rate = [](double of_normal) {
    return third_with("matmul fp32", [&](DeviceFacts& device) { device.matmul_fp32 = of_normal * 50e12; });
  };
  EXPECT_EQ(rate(0.9), "pass rank 2 on node2");
  EXPECT_EQ(rate(0.8), "warn rank 2 on node2");
  EXPECT_EQ(rate(0.5), "fail rank 2 on node2");
}
TEST(DeviceChecks, FailForAnotherProduct) {
  EXPECT_EQ(third_with("bits of a product", [](DeviceFacts& device) { device.product_hash = "ab"; }),
            "fail rank 2 on node2");
  EXPECT_EQ(third_with("bits of a product", [](DeviceFacts& device) { device.n_different = 1; }),
            "fail rank 2 on node2");
}
TEST(DeviceChecks, FailForAllIfTwoRanksDisagree) {
  std::vector<DeviceFacts> devices(2, gpu());
  devices[1].product_hash = "ab";
  EXPECT_EQ(verdicts(check_devices(places_on(1, 2), devices), "bits of a product"),
            Verdicts({"fail rank 0 on node1", "fail rank 1 on node1"}));
}
TEST(DeviceChecks, DoNotCompareDifferentDevices) {
  EXPECT_EQ(third_with("bits of a product",
                       [](DeviceFacts& device) {
                         device.name = "A100";
                         device.product_hash = "ab";
                       }),
            "pass rank 2 on node2");
}
TEST(DeviceChecks, FailForThrottling) {
  EXPECT_EQ(
      third_with("throttling",
                 [](DeviceFacts& device) { device.health.throttle_reasons = std::vector<std::string>{"power brake"}; }),
      "fail rank 2 on node2");
  EXPECT_EQ(third_with("clock", [](DeviceFacts& device) { device.health.clock_mhz = 600; }), "warn rank 2 on node2");
}
TEST(DeviceChecks, FailForErrorsOfMemory) {
  EXPECT_EQ(third_with("ECC errors", [](DeviceFacts& device) { device.health.ecc_uncorrected = 1; }),
            "fail rank 2 on node2");
  EXPECT_EQ(third_with("ECC errors", [](DeviceFacts& device) { device.health.ecc_corrected = 5000; }),
            "warn rank 2 on node2");
  EXPECT_EQ(third_with("XID errors", [](DeviceFacts& device) { device.xid_errors = std::vector<std::string>{"79"}; }),
            "fail rank 2 on node2");
}
TEST(DeviceChecks, FailForNarrowLinks) {
  EXPECT_EQ(third_with("PCIe", [](DeviceFacts& device) { device.health.pcie_lanes = 8; }), "fail rank 2 on node2");
  EXPECT_EQ(third_with("PCIe", [](DeviceFacts& device) { device.health.pcie_generation = 3; }), "fail rank 2 on node2");
  EXPECT_EQ(third_with("NVLink", [](DeviceFacts& device) { device.health.nvlinks_active = 17; }),
            "fail rank 2 on node2");
}
TEST(DeviceChecks, FailForLittleMemory) {
  const auto free = [](std::size_t size_bytes) {
    return third_with("free memory", [&](DeviceFacts& device) { device.health.free_memory_bytes = size_bytes; });
  };
  EXPECT_EQ(free(30'000'000'000), "warn rank 2 on node2");
  EXPECT_EQ(free(3'000'000'000), "fail rank 2 on node2");
}
TEST(DeviceChecks, ReportWhatCannotBeReadAsUnknown) {
  EXPECT_EQ(third_with("XID errors", [](DeviceFacts& device) { device.xid_errors.reset(); }),
            "unknown rank 2 on node2");
  EXPECT_EQ(third_with("ECC errors", [](DeviceFacts& device) { device.health.ecc_uncorrected.reset(); }),
            "unknown rank 2 on node2");
}
TEST(DeviceChecks, FailForADeviceThatCannotBeMeasured) {
  const auto checks = check_with([](DeviceFacts& device) { device = {.problem = "out of memory"}; });
  EXPECT_EQ(verdicts(checks, "device")[2], "fail rank 2 on node2");
}

TEST(SlowestRank, IsComparedWithTheMedianOfItsKind) {
  std::vector<DeviceFacts> devices(4, gpu());
  devices[1].memory_rate = 2.4e12;
  devices[3].matmul_fp32 = 45e12;
  const auto slowest = find_slowest(places_on(2, 2), devices);
  ASSERT_TRUE(slowest);
  EXPECT_EQ(slowest->rank, 1);
  EXPECT_EQ(slowest->what, "memory");
  EXPECT_NEAR(slowest->slower, 0.2, 1e-9);
  EXPECT_FALSE(find_slowest(places_on(1, 1), {gpu()}));
}

TEST(XidErrors, AreThoseOfTheDevice) {
  const std::string log =
      "4,1,2,-;NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus.\n"
      "4,1,2,-;NVRM: Xid (PCI:0000:19:00): 31, pid=1, MMU fault\n4,1,3,-;something else\n";
  EXPECT_EQ(xid_errors_in(log, "0000:18:00.0"), Verdicts({"79, pid=1, GPU has fallen off the bus."}));
  EXPECT_EQ(xid_errors_in(log, "0000:20:00.0"), Verdicts());
  EXPECT_EQ(xid_errors_in(log, ""), Verdicts());
}

TEST(MeasuredDevice, HasRatesAndEqualProducts) {
  const auto world = comm::single_world();
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const DeviceFacts a = measure_device(backend.get(), "", *world), b = measure_device(backend.get(), "", *world);
  EXPECT_EQ(a.problem, "");
  EXPECT_GT(a.matmul_fp32.value_or(0), 1e8);
  EXPECT_GT(a.memory_rate.value_or(0), 1e8);
  EXPECT_FALSE(a.to_device_rate);
  EXPECT_EQ(a.n_different, 0);
  EXPECT_EQ(a.product_hash, b.product_hash);
  EXPECT_GT(a.health.total_memory_bytes.value_or(0), 0U);
}
TEST(MeasuredDevice, MayBeMissing) {
  const auto world = comm::single_world();
  EXPECT_EQ(measure_device(nullptr, "there is no GPU", *world).problem, "there is no GPU");
}

TEST(HealthOfProcessors, IsReadFromTheFilesOfLinux) {
  namespace fs = std::filesystem;
  const fs::path root = fs::temp_directory_path() / ("health." + std::to_string(::getpid()));
  const auto write = [&](const std::string& path, const std::string& content) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << content;
  };
  write("proc/cpuinfo", "cpu MHz\t\t: 2100.5\nmodel name : X\ncpu MHz\t\t: 3300.0\n");
  write("proc/meminfo", "MemTotal:       2000 kB\nMemFree: 1 kB\nMemAvailable:    500 kB\n");
  const DeviceHealth poor = cpu::device_health(root);
  EXPECT_FALSE(poor.throttle_events);
  EXPECT_FALSE(poor.ecc_corrected);
  write("sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "3\n");
  write("sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "4\n");
  write("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3500000\n");
  write("sys/devices/system/edac/mc/mc0/ce_count", "12\n");
  write("sys/devices/system/edac/mc/mc0/ue_count", "1\n");
  const DeviceHealth health = cpu::device_health(root);
  fs::remove_all(root);
  EXPECT_DOUBLE_EQ(health.clock_mhz.value_or(0), 3300);
  EXPECT_DOUBLE_EQ(health.max_clock_mhz.value_or(0), 3500);
  EXPECT_EQ(health.throttle_events, 7U);
  EXPECT_EQ(health.ecc_corrected, 12U);
  EXPECT_EQ(health.ecc_uncorrected, 1U);
  EXPECT_EQ(health.free_memory_bytes, 500U * 1024);
  EXPECT_EQ(health.total_memory_bytes, 2000U * 1024);
}

}  // namespace
}  // namespace lockstep::doctor
