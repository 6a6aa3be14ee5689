// What the driver or the system reports about the condition of a device. Nothing needs root; what cannot be read is
// empty.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

struct DeviceHealth {
  std::string driver;                              // "580.65.06"; empty: unknown, or there is none
  std::optional<double> clock_mhz, max_clock_mhz;  // current and maximum
  // Why the clock is currently lowered, such as "power brake". Idleness and settings are not listed.
  std::optional<std::vector<std::string>> throttle_reasons;
  std::optional<std::uint64_t> throttle_events;                 // so far; only an increase under load is meaningful
  std::optional<std::uint64_t> ecc_uncorrected, ecc_corrected;  // since the driver was loaded
  std::optional<int> pcie_generation, pcie_max_generation;      // max: what the device supports in this slot
  std::optional<int> pcie_lanes, pcie_max_lanes;
  std::optional<int> nvlinks_active, nvlinks_total;
  std::optional<std::size_t> free_memory_bytes, total_memory_bytes;
};

// Defined in src/backend_factory.cpp.
/// The health of the device with this PCI address (DeviceInfo::pci_bus), or of the processors and memory of this node
/// if the address is empty.
DeviceHealth device_health(const std::string& pci_bus);

}  // namespace lockstep
