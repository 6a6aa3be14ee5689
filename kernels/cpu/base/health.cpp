#include "kernels/cpu/base/health.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kernels/cpu/base/machine.h"

namespace lockstep::cpu {
namespace {

namespace fs = std::filesystem;

std::optional<std::uint64_t> number_in(const fs::path& path) {
  std::ifstream in(path);
  std::uint64_t number = 0;
  if (!(in >> number)) return std::nullopt;
  return number;
}

/// The sum of the numbers in FILE over all folders PARENT/PREFIX*; no value if there is none.
std::optional<std::uint64_t> sum_of(const fs::path& parent, const std::string& prefix, const std::string& file) {
  std::optional<std::uint64_t> sum;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    if (const auto number = number_in(entry.path() / file)) sum = sum.value_or(0) + *number;
  }
  return sum;
}

/// The highest current clock of the processors, which is that of processors that compute.
std::optional<double> clock_mhz(const std::string& root) {
  std::ifstream in(root + "/proc/cpuinfo");
  std::optional<double> highest;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("cpu MHz")) continue;
    const double mhz = std::strtod(line.c_str() + line.find(':') + 1, nullptr);
    if (mhz > highest.value_or(0)) highest = mhz;
  }
  return highest;
}

}  // namespace

DeviceHealth device_health(const std::string& root) {
  const fs::path system = root + "/sys/devices/system";
  DeviceHealth health;
  health.clock_mhz = clock_mhz(root);
  if (const auto khz = number_in(system / "cpu/cpu0/cpufreq/cpuinfo_max_freq"))
    health.max_clock_mhz = 1e-3 * static_cast<double>(*khz);
  health.throttle_events = sum_of(system / "cpu", "cpu", "thermal_throttle/core_throttle_count");
  health.ecc_corrected = sum_of(system / "edac/mc", "mc", "ce_count");
  health.ecc_uncorrected = sum_of(system / "edac/mc", "mc", "ue_count");
  health.free_memory_bytes = reported_memory_bytes("MemAvailable:", root);
  health.total_memory_bytes = reported_memory_bytes("MemTotal:", root);
  return health;
}

}  // namespace lockstep::cpu
